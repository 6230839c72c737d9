"""Divides the threads that jobs may use over the sessions of their model.

A session's pool of n threads are n - 1 and its caller: with k callers, n + k - 1 are at work.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from ortdeploy.manifest.spec import ModelSpec
from ortdeploy.plan.thread_layout import ThreadLayout
from ortdeploy.providers.catalogue import CPU, full_name

_OPENVINO, _XNNPACK = full_name("OpenVINO"), full_name("Xnnpack")

ON_THE_PROCESSOR = {CPU, _OPENVINO, _XNNPACK}
"""Providers that compute with threads of this process, which can be told how many."""


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
