"""Opens ONNX Runtime sessions as the plan says, and records where their nodes are.

ONNX Runtime's Python wrapper retries on the CPU when a session cannot be created, so every session is opened with
`enable_fallback=0`; and it lists providers that took no node, so placement is read from the recorded assignment.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError, OutOfMemoryError, ProviderFailedError, TransientError
from ortdeploy.files.opening import regular_path
from ortdeploy.plan.steps import LoadAdapter, OpenSession, PlannedProvider, PlannedSession
from ortdeploy.process.heap import weights_mapped_alone
from ortdeploy.providers.catalogue import CPU
from ortdeploy.providers.options import EXTERNAL_DATA_FOLDER
from ortdeploy.runtime.library import binding, first_line, ort, preload, says_no_memory
from ortdeploy.runtime.model_cache import CacheEntry, cache_options, maps_weights, reuse_options, took_nodes
from ortdeploy.runtime.ort_values import needs_ort_values, run_with_ort_values
from ortdeploy.runtime.protocol import AdapterFiles, Session
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.elements import numpy_dtype
from ortdeploy.tensors.types import ELEMENT_TYPES

_OPTIMIZATION = {
    "disable": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "layout": ort.GraphOptimizationLevel.ORT_ENABLE_LAYOUT,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
_ORDER = {
    "default": ort.ExecutionOrder.DEFAULT,
    "priority_based": ort.ExecutionOrder.PRIORITY_BASED,
}
_EXECUTION = {"sequential": ort.ExecutionMode.ORT_SEQUENTIAL, "parallel": ort.ExecutionMode.ORT_PARALLEL}
_ERRORS_ONLY = 3
_MAY_PASS = (binding.Fail, binding.RuntimeException)
"""Errors that a device may have once and not again; the CPU provider computes the same every time."""
_RECORD_ASSIGNMENT = "session.record_ep_graph_assignment_info"


class OrtSession:
    """One InferenceSession and the adapters loaded for it, which ONNX Runtime does not keep alive itself."""

    def __init__(
        self, session: ort.InferenceSession, run_options: Mapping[str, Any], shapes: Mapping[str, Any] | None = None
    ) -> None:
        """Take an open session, the run options for every run in it, and the shapes that the graph's inputs got."""
        self._session = session
        self._needs_ort_values = needs_ort_values(session)
        self._run_options = run_options
        self._plain = _run_options(run_options)
        self._adapters: dict[str, ort.LoraAdapter] = {}
        self._with_adapters: dict[tuple[str, ...], ort.RunOptions] = {}
        self._required: dict[str, Array] = {}
        nodes = _nodes(session)
        self.placement: Mapping[str, int] = {name: len(operators) for name, operators in nodes.items()}
        self.cpu_operators: Sequence[str] = sorted(set(nodes.get(CPU, ())))
        self.cache: str | None = None
        self._advice = _advice_on(shapes)

    @property
    def native(self) -> ort.InferenceSession:
        """ONNX Runtime's own session, for libraries that take one."""
        return self._session

    def add_adapter(self, name: str, adapter: ort.LoraAdapter, parameters: Collection[str]) -> None:
        """Keep an adapter alive as long as the session, because run options that name it do not.

        Parameters without defaults must be fed for the Python binding to run at all. They get zeros of rank zero, which
        is the base model; an active adapter's own matrices win over what is fed (seen on onnxruntime 1.31.1).
        """
        self._adapters[name] = adapter
        required = {value.name: value for value in self._session.get_inputs() if value.name in parameters}
        self._required |= {key: _nothing(value) for key, value in required.items()}

    def run(self, outputs: Sequence[str], feeds: Mapping[str, Array], adapters: Sequence[str]) -> Sequence[Array]:
        """Run once, with the graph's axes: mostly [rows, …]. ONNX Runtime's refusal becomes an OrtdeployError."""
        options = self._options_with(tuple(adapters)) if adapters else self._plain
        if self._required:
            feeds = {**self._required, **feeds}
        try:
            if self._needs_ort_values:
                return run_with_ort_values(self._session, outputs, feeds, options)
            return self._session.run(outputs, feeds, options)  # type: ignore[no-any-return]  # onnxruntime is untyped
        except MemoryError:
            raise
        except Exception as error:  # every error of the binding is its own class, all derived from Exception
            raise self._translated(error) from error

    def for_caller(self) -> "OrtSession":
        """Return the session with run options of its own, by which one caller's runs are ended."""
        own = copy(self)
        own._plain, own._with_adapters = _run_options(self._run_options), {}  # noqa: SLF001  of the same class
        return own

    def end_runs(self, *, early: bool) -> None:
        """Ask the run that goes on, and all later ones, to end; or let later ones run again. Thread-safe."""
        for options in (self._plain, *self._with_adapters.values()):
            options.terminate = early

    def _translated(self, error: Exception) -> OrtdeployError:
        """Return what an error in a run means: no memory, a failed provider, a busy device, or a bad row."""
        message = first_line(error)
        if says_no_memory(error):
            return OutOfMemoryError(message)
        if isinstance(error, binding.EPFail):
            return ProviderFailedError(message)
        if isinstance(error, _MAY_PASS) and set(self.placement) - {CPU}:
            return TransientError(message)
        return OrtdeployError(f"{message}{self._advice}")

    def _options_with(self, adapters: tuple[str, ...]) -> ort.RunOptions:
        """Return new run options with some adapters active: an adapter cannot be removed from run options."""
        if adapters not in self._with_adapters:
            options = _run_options(self._run_options)
            for name in adapters:
                options.add_active_adapter(self._adapters[name])
            self._with_adapters[adapters] = options
        return self._with_adapters[adapters]


class OrtRuntime:
    """The real runtime; `cache` is the folder for optimized and compiled models.

    `make_model` returns the model of a step that does not open its file as it is.
    """

    def __init__(self, cache: Path | None = None, make_model: Callable[[OpenSession], bytes] | None = None) -> None:
        """Take the folder; it is made when something is kept."""
        self._cache = cache
        self._make_model = make_model

    def open_session(self, step: OpenSession, candidate: PlannedSession) -> Session:
        """Open a session with exactly the candidate's chain and the step's options. Raises OrtdeployError."""
        if step.generates:
            from ortdeploy.runtime.generation import GenaiSession  # noqa: PLC0415  few models write

            return GenaiSession(step, candidate)
        if self._make_model is not None and (step.graph is not None or step.fusion is not None or step.shapes):
            return _open_made(step, candidate, self._make_model(step))
        if not step.cache or self._cache is None:
            return _open(step, candidate)
        return _open_through_cache(step, candidate, CacheEntry(self._cache, step, candidate))

    def load_adapter(self, step: LoadAdapter, session: Session) -> None:
        """Load an adapter without an allocator: Python's Load takes none, the CPU needs none. Raises OrtdeployError."""
        if isinstance(session, AdapterFiles):
            session.load_adapter_file(step.adapter, regular_path(step.path, may_be_missing=True))
            return
        if not isinstance(session, OrtSession):
            raise TypeError(f"adapters of this runtime go to its own sessions, not to {session!r}")
        adapter = ort.LoraAdapter()
        try:
            adapter.Load(regular_path(step.path, may_be_missing=True))
        except Exception as error:
            raise OrtdeployError(f'Adapter "{step.adapter}" ({step.path}): {first_line(error)}') from error
        session.add_adapter(step.adapter, adapter, step.parameters)


@cache
def _make_shared_arena(settings: tuple[tuple[str, int], ...]) -> None:
    """Register the arena that the sessions of this process share. A plan with one runs in a process of its own."""
    memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(memory, ort.OrtArenaCfg(dict(settings)) if settings else None)


def _open(
    step: OpenSession,
    candidate: PlannedSession,
    path: Path | None = None,
    more: Mapping[str, Any] | None = None,
    made: bytes | None = None,
) -> "OrtSession":
    """Open a session; a cache names another file than the plan, and has more options. What was `made` has no file."""
    file = made or str(path or step.path)
    config = {**step.options.get("config", {}), **(more or {}).get("config", {})}
    options = session_options({**step.options, **(more or {}), "config": config})
    if step.shared_arena is not None:
        _make_shared_arena(tuple(sorted(step.shared_arena.items())))
    if step.extensions:
        register_extensions(options)
    if any(provider.device is None and provider.name != CPU for provider in candidate.providers):
        preload()  # ONNX Runtime looks for CUDA where the system has it, not where pip has put it
    if CPU not in {provider.name for provider in candidate.providers}:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    try:
        if isinstance(file, str):
            regular_path(file, may_be_missing=True)
        with weights_mapped_alone():
            if any(provider.device for provider in candidate.providers):
                _add_devices(options, candidate)
                session = ort.InferenceSession(file, sess_options=options, enable_fallback=0)
            else:
                providers = [(provider.name, dict(provider.options)) for provider in candidate.providers]
                session = ort.InferenceSession(file, sess_options=options, providers=providers, enable_fallback=0)
    except OrtdeployError:
        raise
    except Exception as error:
        why = f"memory ran out ({first_line(error)})" if says_no_memory(error) else first_line(error)
        raise OrtdeployError(f'Model "{step.model}" cannot be opened: {why}') from error
    return OrtSession(session, step.run_options, step.shapes)


def _open_made(step: OpenSession, candidate: PlannedSession, model: bytes) -> "OrtSession":
    """Open a model that was made for the step; external data lies where the model's file does."""
    config = step.options.get("config", {})
    if step.path and EXTERNAL_DATA_FOLDER not in config:
        config = {**config, EXTERNAL_DATA_FOLDER: str(Path(step.path).parent)}
    session = _open(replace(step, options={**step.options, "config": config}), candidate, made=model)
    if step.cache:
        session.cache = "not kept: it is opened with another graph than its file has"
    return session


def _open_through_cache(step: OpenSession, candidate: PlannedSession, entry: CacheEntry) -> "OrtSession":
    """Open a cached model if it still fits, else make it again; open the original if it cannot be cached."""
    cached, why_not = entry.find()
    if cached is not None:
        try:
            session = _open(step, candidate, cached.path, reuse_options(candidate))
            if set(session.placement) == set(cached.placement):
                session.placement = cached.placement
                session.cache = f"reused, made on {cached.machine}"
                return session
            why_not = "it is placed on other providers than before"
        except OrtdeployError as error:
            why_not = str(error)
    session = _open_and_keep(step, candidate, entry)
    if why_not and session.cache == "made":
        session.cache = f"made anew: {why_not}"
    return session


def _open_and_keep(step: OpenSession, candidate: PlannedSession, entry: CacheEntry) -> "OrtSession":
    """Open a session that writes its optimized or compiled model; a plain one if that fails."""
    try:
        options = cache_options(candidate, entry.begin())
        if options is None:
            entry.abandon()
            return _open(step, candidate)
        session = _open(step, candidate, more=options)
        if not took_nodes(candidate, session.placement):
            entry.abandon()
            return session
        placement = session.placement
        entry.keep(placement)
        if maps_weights(candidate):
            del session  # its weights are its own
            session = _open(step, candidate, entry.path, reuse_options(candidate))
            session.placement = placement
        session.cache = "made"
    except (OrtdeployError, OSError) as error:
        entry.abandon()
        session = _open(step, candidate)
        session.cache = f"not kept: {error}"
    return session


def session_options(options: Mapping[str, Any]) -> ort.SessionOptions:
    """Turn the plan's session options into SessionOptions, by the same names."""
    result = ort.SessionOptions()
    result.log_severity_level = _ERRORS_ONLY
    result.add_session_config_entry(_RECORD_ASSIGNMENT, "1")
    for name, value in options.items():
        match name:
            case "graph_optimization_level":
                result.graph_optimization_level = _OPTIMIZATION[value]
            case "execution_mode":
                result.execution_mode = _EXECUTION[value]
            case "execution_order":
                result.execution_order = _ORDER[value]
            case "free_dimension_overrides":
                for symbol, size in value.items():
                    result.add_free_dimension_override_by_name(symbol, size)
            case "config":
                for key, text in value.items():
                    result.add_session_config_entry(key, text)
            case _:
                setattr(result, name, value)
    return result


def register_extensions(options: ort.SessionOptions) -> None:
    """Let a session find the operators of onnxruntime-extensions. Raises OrtdeployError if it is not usable."""
    try:
        from onnxruntime_extensions import get_library_path  # noqa: PLC0415  an extra: few models need it

        options.register_custom_ops_library(get_library_path())
    except Exception as error:  # the binding's errors are all derived from Exception
        raise OrtdeployError(f"onnxruntime-extensions cannot be used: {first_line(error)}") from error


def _run_options(options: Mapping[str, Any]) -> ort.RunOptions:
    """Turn the plan's run options into RunOptions, by the same names."""
    result = ort.RunOptions()
    for name, value in options.items():
        if name == "config":
            for key, text in value.items():
                result.add_run_config_entry(key, text)
        else:
            setattr(result, name, value)
    return result


def _add_devices(options: ort.SessionOptions, candidate: PlannedSession) -> None:
    """Give plugin providers their devices, in order; ONNX Runtime puts the CPU provider after them by itself."""
    for provider in candidate.providers:
        if provider.device is not None:
            from ortdeploy.runtime.plugins import register  # noqa: PLC0415  not for the CPU alone

            register(provider.name, provider.device.library)
            options.add_provider_for_devices([_find_device(provider)], dict(provider.options))


def _advice_on(shapes: Mapping[str, Any] | None) -> str:
    """Say of a refused run that the manifest has overruled what the graph says of its inputs; empty if it has not."""
    if not shapes:
        return ""
    names = " and ".join(f'"{name}"' for name in shapes)
    return (
        f". The manifest overrules the shape that the graph declares for {names}, and a node may need that shape: "
        "leave shape out under inputs of the model, or declare one that its nodes take"
    )


def _nothing(value: ort.NodeArg) -> Array:
    """Return a matrix without effect: of rank zero if the graph leaves the rank open, else zeros."""
    dtype = next(name for name, word in ELEMENT_TYPES.items() if f"tensor({word})" == value.type)
    return np.zeros([size if isinstance(size, int) else 0 for size in value.shape], numpy_dtype(dtype))


def _find_device(provider: PlannedProvider) -> ort.OrtEpDevice:
    """Return the planned device. Raises OrtdeployError if it is not what the plan saw."""
    from ortdeploy.runtime.plugins import describe, ep_devices  # noqa: PLC0415  not for the CPU alone

    planned = provider.device
    known = describe(provider.name, planned.library) if planned else ()
    for facts, device in zip(known, ep_devices(provider.name), strict=True):
        if planned and (facts.index, facts.kind, facts.name) == (planned.index, planned.kind, planned.name):
            return device
    raise OrtdeployError(f"{provider.name} no longer offers the planned device {planned}")


def _nodes(session: ort.InferenceSession) -> dict[str, list[str]]:
    """Return operator types by provider, as ONNX Runtime recorded the assignment; variants count as their provider."""
    nodes: dict[str, list[str]] = {}
    for subgraph in session.get_provider_graph_assignment_info():
        operators = [node.op_type for node in subgraph.get_nodes()]
        nodes.setdefault(subgraph.ep_name.partition(".")[0], []).extend(operators)
    return nodes
