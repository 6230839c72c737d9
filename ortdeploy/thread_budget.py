"""Divides the threads that jobs may use over the sessions of their model."""

from collections.abc import Iterable, Mapping
from typing import Any

from ortdeploy.manifest.spec import ModelSpec
from ortdeploy.providers.catalogue import full_name

_OPENVINO, _XNNPACK = full_name("OpenVINO"), full_name("Xnnpack")


def threads_of_session(model: ModelSpec, limits: Iterable[int | None]) -> int | None:
    """Return the threads of each session of a model whose jobs have these limits; None where nothing limits them."""
    known = [limit for limit in limits if limit is not None]
    return max(1, min(known) // model.sessions_at_once) if known else None


def with_threads(session: Mapping[str, Any], threads: int | None) -> Mapping[str, Any]:
    """Return session options with so many threads, unless they name a number themselves."""
    if threads is None or session.get("intra_op_num_threads"):
        return session
    return {**session, "intra_op_num_threads": threads}


def provider_with_threads(name: str, options: Mapping[str, Any], device: str, threads: int | None) -> Mapping[str, Any]:
    """Return options of a provider with a thread pool of its own, with so many threads unless they name a number."""
    if threads is None:
        return options
    if name == _XNNPACK and "intra_op_num_threads" not in options:
        return {**options, "intra_op_num_threads": threads}
    if name == _OPENVINO and device == "CPU" and isinstance(options.get("load_config", {}), Mapping):
        config = options.get("load_config", {})
        cpu = {"INFERENCE_NUM_THREADS": threads, **config.get("CPU", {})}
        return {**options, "load_config": {**config, "CPU": cpu}}
    return options
