"""Divides the threads that jobs may use over the sessions of their model.

A session's pool of n threads are n - 1 and its caller: with k callers, n + k - 1 are at work.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.manifest.spec import ModelSpec
from ortdeploy.providers.catalogue import CPU, full_name

_OPENVINO, _XNNPACK = full_name("OpenVINO"), full_name("Xnnpack")

ON_THE_PROCESSOR = {CPU, _OPENVINO, _XNNPACK}
"""Providers that compute with threads of this process, which can be told how many."""


class ThreadLayout(Struct, frozen=True, kw_only=True):
    """One way to use threads: sessions, the batches that each runs at once, the size of each one's pool.

    0 `threads` are as many as ONNX Runtime takes by itself.
    """

    sessions: int = 1
    callers: int = 1
    threads: int = 1

    @property
    def name(self) -> str:
        """`2 sessions of 1 thread`; `1 session of 1 thread with 2 callers`; `1 session of all threads`."""
        threads = _count(self.threads, "thread") if self.threads else "all threads"
        text = f"{_count(self.sessions, 'session')} of {threads}"
        return text if self.callers == 1 else f"{text} with {self.callers} callers"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def thread_layouts(threads: int) -> tuple[ThreadLayout, ...]:
    """Return the thread layouts with at most `threads` threads that are worth measuring, the most different ones first.

    Only a measurement tells which is best: small kernels are not worth a pool, callers share one, and each session has
    weights of its own. Of equal layouts, the one that takes less memory comes first.
    """
    if threads == 1:
        return ()
    several = tuple(dict.fromkeys([*(2**power for power in range(1, 7) if 2**power < threads), threads]))
    found = (
        *(ThreadLayout(threads=number) for number in several),
        *(ThreadLayout(callers=number, threads=threads - number + 1) for number in several),
        *(ThreadLayout(sessions=number, threads=threads // number) for number in several),
        ThreadLayout(),
    )
    return tuple(sorted(found, key=lambda one: -max(one.sessions, one.callers, one.threads)))


SMALL_RUN = 512 * 1024
"""Bytes of weights and activations below which a run is short, and much of it is starting and joining threads.

Measured with two cores: in runs of 0.1 ms a second caller gains, and in those of 0.25 ms and 0.8 MiB it loses a tenth.
"""

LEAST_BATCHES = 64
"""Batches of a job that tries layouts: fewer are over before anything is measured."""


def tried_layouts(cores: int, limit: int | None) -> tuple[ThreadLayout, ...]:
    """Return the thread layouts of which a job tries some if nothing is written about threads (`worth_trying`).

    They are one wide session, the same session with a second caller, one session of one thread with a caller for each
    core, and a session of one thread for each core. Under a `limit` a second caller would be a thread too many.
    """
    threads = cores if limit is None else min(cores, limit)
    if threads == 1:
        return ()
    wide = ThreadLayout(threads=0 if limit is None else limit)
    shared = () if limit is not None else (replace(wide, callers=2),)
    return (wide, *shared, ThreadLayout(callers=threads), ThreadLayout(sessions=threads))


def worth_trying(layouts: Sequence[ThreadLayout], run_bytes: int) -> tuple[ThreadLayout, ...]:
    """Return the thread layouts to try, the one to begin with first; runs have `run_bytes` of weights and activations.

    Begun is with the wide session: if runs are short with two callers, because the second one computes while the
    threads of the first one start and join. In other runs, callers only take cores and caches from each other. Both run
    one session, whose results are the same, and the choice rests on what is run alone: so equal processes begin alike.
    Only one of both is tried. Of 36 random networks on two cores, layouts of one thread were faster than either in 34
    (`benchmarks/layouts.py`).
    """
    shared = replace(layouts[0], callers=2)
    first = shared if shared in layouts and run_bytes < SMALL_RUN else layouts[0]
    return (first, *(one for one in layouts if one.threads == 1))


def threads_at_work(model: ModelSpec, threads: int) -> int:
    """Return how many threads work at once in the sessions of a model, for a number of threads in each."""
    return model.sessions_at_once * (threads + model.callers - 1)


def threads_of_session(model: ModelSpec, limits: Iterable[int | None]) -> int | None:
    """Return the threads of each session of a model whose jobs have these limits; None if nothing limits them."""
    known = [limit for limit in limits if limit is not None]
    return max(1, min(known) // model.sessions_at_once - model.callers + 1) if known else None


def with_threads(session: Mapping[str, Any], threads: int | None) -> Mapping[str, Any]:
    """Return session options with a number of threads, unless they set one themselves."""
    if threads is None or session.get("intra_op_num_threads"):
        return session
    return {**session, "intra_op_num_threads": threads}


SPINNING = "session.intra_op.allow_spinning"
"""The session config entry that lets threads spin while they wait; ONNX Runtime's default is that they do."""


def sleeping(session: Mapping[str, Any]) -> dict[str, Any]:
    """Return session options whose threads sleep while they wait, unless they say so themselves."""
    return {**session, "config": {SPINNING: False, **session.get("config", {})}}


def without_spinning(session: Mapping[str, Any], first_providers: Iterable[str]) -> Mapping[str, Any]:
    """Return session options whose threads sleep while a device computes, unless they say so themselves.

    The pool is for the nodes that are left to the processor: spinning, it takes a core for as long as the device runs.
    `first_providers` are those of the sessions that the model may get; one on the processor keeps its threads ready.
    """
    first = set(first_providers)
    if not first or first & ON_THE_PROCESSOR:
        return session
    return sleeping(session)


def provider_with_threads(name: str, options: Mapping[str, Any], device: str, threads: int | None) -> Mapping[str, Any]:
    """Return options of a provider with its own thread pool, with a number of threads unless they set one."""
    if threads is None:
        return options
    if name == _XNNPACK and "intra_op_num_threads" not in options:
        return {**options, "intra_op_num_threads": threads}
    if name == _OPENVINO and device == "CPU" and isinstance(options.get("load_config", {}), Mapping):
        config = options.get("load_config", {})
        cpu = {"INFERENCE_NUM_THREADS": threads, **config.get("CPU", {})}
        return {**options, "load_config": {**config, "CPU": cpu}}
    return options
