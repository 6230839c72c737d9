"""Workers on a Ray cluster: actors, each with a process that makes parts. The only module that imports Ray.

Ray restarts an actor, here or on another node, and reports its end; the driver decides which parts are made again. No
rows go through Ray, only numbers of parts and answers.
"""

import io
import logging
import re
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.application.driver import Answer
from ortdeploy.application.worker_process import Said, WorkerProcess
from ortdeploy.diagnostics import OrtdeployError, UsageError
from ortdeploy.events import log
from ortdeploy.plan.selection import openings_of
from ortdeploy.plan.steps import Plan, RunJob
from ortdeploy.plan.thread_layout import BY_RULE
from ortdeploy.providers.catalogue import find_provider
from ortdeploy.shell import pip_install

AUTO = "auto"
LOCAL = "local"
_ADDRESS = re.compile(r"auto|local|[^/\s]+:[0-9]{1,5}")
_LAST_PORT = 65_535
_CONNECT_SECONDS = 10.0
_LOCAL_STORE = 80 * 1024**2
"""Bytes of Ray's object store if ortdeploy starts Ray itself; it is small, because no rows go through it."""


class WorkerActor:
    """The actor that Ray runs on a node."""

    def __init__(self, module: str, request: Mapping[str, Any]) -> None:
        """Take the arguments of `WorkerProcess`."""
        self._process = WorkerProcess(module, request)

    def begin(self) -> Said:
        """Get ready."""
        return self._process.begin()

    def make(self, part: int) -> Said:
        """Make a part."""
        return self._process.make(part)


class Needs(Struct, frozen=True, kw_only=True):
    """The resources that Ray reserves for a worker; None: all cores of its node, for as many callers of its session."""

    cpus: float | None
    gpus: float


def needs_of(plan: Plan, step: RunJob) -> Needs:
    """Return what a worker of a job needs: a core for each thread of its sessions, a GPU if one runs on NVIDIA's.

    If its session has a caller for each core, those are the threads. Without a number of threads, ONNX Runtime uses all
    cores of a machine, and Ray reserves one.
    """
    if step.thread_layout == BY_RULE.name:
        return Needs(cpus=step.limits.threads, gpus=0)
    openings = openings_of(plan, step)
    names = {provider.name for one in openings for session in one.candidates for provider in session.providers}
    known = [provider for provider in map(find_provider, names) if provider is not None]
    gpus = 1 if any(provider.memory == "NVIDIA GPU" for provider in known) else 0
    threads = [
        int(one.options.get("intra_op_num_threads", 0)) * max(c.count for c in one.candidates) for one in openings
    ]
    return Needs(cpus=max(threads) if all(threads) else 1, gpus=gpus)


def check_address(address: str) -> None:
    """Refuse an unusable address before anything is planned. Raises UsageError, OrtdeployError."""
    if address.startswith("ray://"):
        raise UsageError(
            f"--engine ray={address}: the driver runs inside the cluster and not through Ray Client. Submit it: "
            "ray job submit -- ortdeploy apply PLAN --engine ray"
        )
    host, _, port = address.rpartition(":")
    if not _ADDRESS.fullmatch(address) or (host and int(port) > _LAST_PORT):
        raise UsageError(f"--engine ray={address}: write HOST:PORT of a cluster, or local to start one for this run")
    if find_spec("ray") is None:
        raise OrtdeployError(f"--engine ray needs Ray, which is not installed: {pip_install('ortdeploy[ray]')}")


@contextmanager
def joined(address: str) -> Iterator[None]:
    """Connect to a Ray cluster as a driver inside the block. Raises OrtdeployError."""
    import ray  # noqa: PLC0415  heavy, and only for a cluster

    _check_reachable(address)
    with redirect_stdout(_Printed()):  # Ray prints messages of nodes to stdout, which is for results
        _join(ray, address)
        try:
            yield
        finally:
            ray.shutdown()


class _Printed(io.TextIOBase):
    """Logs what a library prints."""

    def write(self, text: str, /) -> int:
        """Log the lines of a text."""
        for line in filter(None, map(str.strip, text.splitlines())):
            log.info("engine.printed", text=line)
        return len(text)


def _join(ray: Any, address: str) -> None:
    """Join a cluster. Raises OrtdeployError."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    of_its_own = {"include_dashboard": False, "object_store_memory": _LOCAL_STORE} if address == LOCAL else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **of_its_own)
    except Exception as error:
        raise OrtdeployError(_why_not_joined(address, error)) from error
    finally:  # Ray's own handlers end the process at once
        for number, action in before.items():
            signal.signal(number, action)


def _check_reachable(address: str) -> None:
    """Raise OrtdeployError if nothing listens at the address, because Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    if not host:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, UnicodeError) as error:  # some names cannot be asked for at all
        why = getattr(error, "strerror", None) or error
        raise OrtdeployError(f"the Ray cluster {address} cannot be reached: {why}") from error


def _why_not_joined(address: str, error: Exception) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    if address == AUTO:
        return (
            f"this machine is in no Ray cluster that runs ({text}). Start one with ray start --head, name one with "
            "--engine ray=HOST:PORT, or have one for this run alone with --engine ray=local"
        )
    if address == LOCAL:
        return (
            f"Ray cannot be started on this machine ({text}). If the machine is busy, start Ray first, with ray start "
            "--head, and name it with --engine ray"
        )
    return (
        f"the Ray cluster {address} cannot be joined ({text}). If it asks for a token, set RAY_AUTH_MODE=token, and "
        "give the token in ~/.ray/auth_token or RAY_AUTH_TOKEN"
    )


@contextmanager
def hired(count: int | None, needs: Needs, module: str, request: Mapping[str, Any]) -> Iterator["RayPool"]:
    """Start workers for the block: `count`, or as many as the cluster has room for. Raises OrtdeployError."""
    import ray  # noqa: PLC0415  as above

    if needs.cpus is None:
        cores = cores_of_worker(ray.nodes(), count)
        needs, request = replace(needs, cpus=cores), {**request, "cores": cores}
    pool = RayPool(ray, count or room(ray.nodes(), needs), needs, module, request)
    try:
        yield pool
    finally:
        pool.dismiss()


def cores_of_worker(nodes: Sequence[Mapping[str, Any]], count: int | None) -> int:
    """Return the cores of a worker that may have all of its node: those of the smallest one.

    Of `count` workers, if somebody has said how many, each gets no more than its share of all.
    """
    found = [cores for one in nodes if one["Alive"] and (cores := int(one["Resources"].get("CPU", 0)))]
    shares = [] if count is None else [sum(found) // count]
    return max(min([*found, *shares], default=1), 1)


def room(nodes: Sequence[Mapping[str, Any]], needs: Needs) -> int:
    """Return how many workers there is room for: one on each node, or more if their needs are known."""
    alive = [one["Resources"] for one in nodes if one["Alive"]]
    if needs.gpus:
        places = [int(one.get("GPU", 0)) for one in alive]
    elif needs.cpus is not None and needs.cpus > 1:
        places = [int(one.get("CPU", 0) // needs.cpus) for one in alive]
    else:
        places = [min(int(one.get("CPU", 0)), 1) for one in alive]
    if sum(places) == 0:
        gpus = " and a GPU" if needs.gpus else ""
        raise OrtdeployError(f"no node of the Ray cluster has {needs.cpus or 1:g} CPUs{gpus} for a worker")
    return sum(places)


class RayPool:
    """Actors by number; see `Crew`."""

    def __init__(self, ray: Any, count: int, needs: Needs, module: str, request: Mapping[str, Any]) -> None:
        """Ask Ray for the actors; they come when there is room."""
        self._ray = ray
        actor = ray.remote(WorkerActor).options(
            num_cpus=needs.cpus,
            num_gpus=needs.gpus,
            max_restarts=-1,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
        )
        self._actors = {number: actor.remote(module, {**request, "name": f"ray {number}"}) for number in range(count)}
        self._asked: dict[Any, tuple[int, int | None]] = {}

    @property
    def workers(self) -> Sequence[int]:
        """The numbers of the actors."""
        return tuple(self._actors)

    def begin(self, worker: int) -> None:
        """Ask an actor to get ready; of one that is starting again, once it has."""
        self._asked[self._actors[worker].begin.remote()] = (worker, None)

    def make(self, worker: int, part: int) -> None:
        """Ask an actor for a part."""
        self._asked[self._actors[worker].make.remote(part)] = (worker, part)

    def answers(self, seconds: float) -> Sequence[Answer]:
        """Return the answers that have come; a lost actor gives one answer, whatever else it was asked."""
        if not self._asked:  # while lost actors start again
            time.sleep(seconds)
            return ()
        done, _ = self._ray.wait(list(self._asked), num_returns=1, timeout=seconds)
        if done and len(self._asked) > 1:
            done, _ = self._ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)
        found = []
        for ref in done:
            if ref in self._asked:
                worker, part = self._asked.pop(ref)
                found.append(self._answer(ref, worker, part))
        return found

    def _answer(self, ref: Any, worker: int, part: int | None) -> Answer:
        errors = self._ray.exceptions
        try:
            return Answer(worker=worker, part=part, said=self._ray.get(ref))
        except errors.ActorDiedError as error:
            reason, gone = _words_of(error), True
        except (errors.ActorUnavailableError, errors.RayError) as error:
            reason, gone = _words_of(error), isinstance(error, errors.RayTaskError)
        for other in [one for one, (asked, _) in self._asked.items() if asked == worker]:
            del self._asked[other]
        return Answer(worker=worker, part=part, reason=reason, gone=gone)

    def dismiss(self) -> None:
        """End all actors, even those that hang."""
        for actor in self._actors.values():
            self._ray.kill(actor)


def _words_of(error: Exception) -> str:
    """Return the first and the last line of Ray's message: what happened, and the underlying error."""
    lines = [line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()]
    return ": ".join(dict.fromkeys([*lines[:1], *lines[-1:]])) or type(error).__name__
