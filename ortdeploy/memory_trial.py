"""Predicts how much memory the jobs of a deployment take: arithmetic over graphs, nothing is run.

The factors were measured on onnxruntime 1.31.1 on Linux, for multilayer perceptrons, convolutional networks and
transformers at many shapes; `benchmarks/memory.py` compares them with what jobs take.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

from ortdeploy.deployment import Binding, Deployment, ResolvedJob, ResolvedModel, ResolvedSession
from ortdeploy.element_types import numpy_dtype
from ortdeploy.facts import MemoryForecast, MemoryPart
from ortdeploy.graph.activations import activation_bytes
from ortdeploy.providers.catalogue import CPU, find_provider
from ortdeploy.sinks.catalogue import SINKS
from ortdeploy.tensors import TensorType
from ortdeploy.window import LEAST, SMALL_BYTES

_MIB = 1024 * 1024

_PROCESS = 98 * _MIB
"""A process that has planned and runs a job of a few bytes: CPython 3.11, numpy, onnx, onnxruntime."""

_PROVIDER = {"OpenVINO": 120 * _MIB, "QNN": 60 * _MIB, "CUDA": 400 * _MIB, "Tensorrt": 600 * _MIB}
"""What a provider's own libraries add to it."""

_PYARROW = 45 * _MIB

_KEPT, _KEPT_CONVOLUTIONS = 1.1, 1.3
"""Weights of an open session, in units of their size: packed once, and reordered for convolutions."""

_OPENING, _OPENING_CONVOLUTIONS = 1.0, 2.9
"""What opening takes beside them where the weights are in the model's own file; the heap keeps it for later."""

_OPENING_EXTERNAL = 0.1

_PATTERN, _ARENA, _BARE = 2.25, 1.4, 1.15
"""Activations in units of what is in use at once: with memory pattern (a second copy), arena alone, neither."""

_TEXT = 20
"""Python objects and text of numbers, in units of the numbers' own size."""

_TEXT_VALUE = 64
"""A Python string of some words."""

_CANDIDATES = tuple(2**power for power in range(12, -1, -1))
"""Batch sizes that are tried for advice."""


def forecast_memory(deployment: Deployment) -> Deployment:
    """Return the deployment with what each of its unfinished jobs is predicted to take."""
    jobs = [job for job in deployment.jobs if not job.is_finished]
    found = {job.spec.name: _forecast(deployment, job) for job in jobs}
    return replace(deployment, facts=replace(deployment.facts, memory=found))


def _forecast(deployment: Deployment, job: ResolvedJob) -> MemoryForecast:
    parts, unknown = _parts(job, max(job.batch_size, 1))
    disk = _disk(job)
    limit = job.spec.limits.memory
    machine = deployment.facts.machine
    bound = min((size for size in (limit, machine and machine.memory_bytes) if size), default=None)
    total = sum(part.size for part in parts)
    fitting = None
    if bound is not None and total > bound and job.fixed_batch is None and job.batch_size:
        smaller = (size for size in _CANDIDATES if size < job.batch_size)
        fitting = next((size for size in smaller if _total(job, size) <= bound), None)
    return MemoryForecast(parts=parts, unknown=unknown, limit=limit, fitting=fitting, disk=disk)


def _total(job: ResolvedJob, batch: int) -> int:
    return sum(part.size for part in _parts(job, batch)[0])


def _parts(job: ResolvedJob, batch: int) -> tuple[tuple[MemoryPart, ...], str | None]:
    """Return what makes up a job's memory with batches of a size, and what of it is not known."""
    activations = activation_bytes(job.model.facts.skeleton, {b.value.name: _fed(job, b, batch) for b in job.bindings})
    rows = _row_bytes(job)
    unknown = "activations" if activations is None else "results" if rows is None else None
    found = (
        MemoryPart(what="process", size=_process_bytes(job)),
        MemoryPart(what="weights", size=_weight_bytes(job)),
        MemoryPart(what="activations", size=int((activations or 0) * _activation_factor(job))),
        MemoryPart(what="rows and results", size=_data_bytes(job, batch, rows or 0)),
    )
    return found, unknown


def _fed(job: ResolvedJob, binding: Binding, batch: int) -> tuple[int | None, ...]:
    return binding.shape(batch) if job.batch_size else binding.shape(batch)[1:]


def _process_bytes(job: ResolvedJob) -> int:
    names = {provider.name for session in _sessions(job.model) for provider in session.chain}
    shorts = {provider.short for name in names if (provider := find_provider(name))}
    tables = {"parquet", "arrow"} & {job.input.format, job.spec.output.format}
    return _PROCESS + sum(_PROVIDER.get(short, 0) for short in shorts) + (_PYARROW if tables else 0)


def _sessions(model: ResolvedModel) -> Sequence[ResolvedSession]:
    return model.usable if model.spec.use == "all" else model.usable[:1]


def _weight_bytes(job: ResolvedJob) -> int:
    """Return what the weights take in all sessions, the CPU's for the probe run among them, and adapters."""
    weights, model = job.model.facts.weights, job.model
    sessions = sum(session.spec.count for session in _sessions(model))
    probed = any({p.name for p in session.chain} != {CPU} for session in _sessions(model)) and model.spec.probe
    others = weights.size - weights.of_convolutions
    kept = _KEPT * others + _KEPT_CONVOLUTIONS * weights.of_convolutions
    opening = _OPENING_EXTERNAL * others if weights.external else _OPENING * others
    opening += _OPENING_CONVOLUTIONS * weights.of_convolutions / (2 if weights.external else 1)
    adapters = sum(_file_bytes(facts.path) for facts in job.adapter_facts.values())
    return int(kept * (sessions + bool(probed)) + opening) + adapters


def _file_bytes(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


def _activation_factor(job: ResolvedJob) -> float:
    """Return the arenas of all sessions in units of what one run has in use at once."""
    options, model = job.model.spec.session, job.model
    sessions = sum(session.spec.count for session in _sessions(model))
    if not options.get("enable_cpu_mem_arena", True):
        return _BARE * sessions
    pattern = options.get("enable_mem_pattern", True) and not (
        model.spec.memory.pattern_by_shape and job.has_varying_shapes
    )
    return (_PATTERN if pattern else _ARENA) * sessions


def _data_bytes(job: ResolvedJob, batch: int, result: int) -> int:
    """Return what rows and results take between source and sink: blocks on their way, or the part that is written."""
    total = job.input.rows or job.spec.output.rows_per_part
    sessions = sum(session.spec.count for session in _sessions(job.model))
    row = sum(_tensor_bytes(binding.final) or 0 for binding in job.bindings)
    read = row * (_TEXT if job.input.format in {"csv", "jsonl"} else 1 if job.input.format == "npy" else 2)
    sink = SINKS[job.spec.output.format]
    blocks = (LEAST * sessions + 1) * batch
    small = SMALL_BYTES // max(read + result, 1)
    on_their_way = min(max(blocks, small), total) * (read + result)
    written = min(batch, total) * result * sink.BLOCK_COPIES
    part = min(job.spec.output.rows_per_part, total) * result
    return max(on_their_way + written + part * bool(sink.PART_COPIES), part * sink.PART_COPIES)


def _row_bytes(job: ResolvedJob) -> int | None:
    """Return what a row's results take; None where the graph leaves a size open."""
    sizes = [_tensor_bytes(job.results.get(name, TensorType())) for name in job.columns]
    return None if any(size is None for size in sizes) else sum(size or 0 for size in sizes)


def _tensor_bytes(tensor: TensorType) -> int | None:
    """Return what one row of a tensor takes, rows first; None where a size is open."""
    if tensor.shape is None or tensor.dtype is None:
        return None
    sizes = [size for size in tensor.shape[1:] if isinstance(size, int)]
    if len(sizes) < len(tensor.shape) - 1:
        return None
    return prod(sizes) * (_TEXT_VALUE if tensor.dtype == "string" else numpy_dtype(tensor.dtype).itemsize)


def _disk(job: ResolvedJob) -> int | None:
    """Return what the output takes on disk; None where that depends on the values."""
    result = _row_bytes(job)
    if result is None or job.input.rows is None or job.spec.output.format not in {"npy", "npz", "arrow"}:
        return None
    return (job.input.first_row + job.input.rows) * result - job.output.rows * result
