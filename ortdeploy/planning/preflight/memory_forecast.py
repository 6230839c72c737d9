"""Predicts how much memory the jobs of a deployment take, by arithmetic over graphs: nothing is run.

The factors were measured on onnxruntime 1.31.1 on Linux, for multilayer perceptrons, convolutional networks and
transformers at many shapes; `benchmarks/memory.py` compares them with what jobs take. They were tested with the
versions of `versions.TESTED_WITH`; of another version, findings that rest on them are assumed.
"""

import sys
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from itertools import takewhile
from math import prod
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.deployment.pipeline_types import TypedStep
from ortdeploy.deployment.resolved import Deployment, ResolvedJob, ResolvedModel, ResolvedSession
from ortdeploy.facts.host import MachineFacts
from ortdeploy.facts.models import FoldedConstants
from ortdeploy.facts.preflight import ROOMY, MemoryForecast, MemoryPart
from ortdeploy.files.memory_budget import PROCESS
from ortdeploy.manifest.pipelines import DIFFUSION
from ortdeploy.plan.op_graph import OpGraph
from ortdeploy.plan.thread_layout import ThreadLayout
from ortdeploy.planning.graph_cache import Running, Runs, buffer_bytes, folded_constants
from ortdeploy.planning.make.op_lines import op_lines
from ortdeploy.planning.preflight.row_sizes import ROWS_AND_RESULTS, RowSizes, runs_again
from ortdeploy.planning.preflight.value_bytes import items_at_once, value_bytes
from ortdeploy.providers.catalogue import CPU, find_provider
from ortdeploy.sinks.catalogue import SINKS
from ortdeploy.sources.mapped import BLOCK_BYTES
from ortdeploy.tensors.elements import numpy_dtype
from ortdeploy.tensors.row_axes import to_place
from ortdeploy.tensors.types import ROWS, TensorType

_MIB = 1024 * 1024

Sizes = tuple[int | None, ...]
Shapes = dict[str, Sizes]

_PROVIDER = {"OpenVINO": 120 * _MIB, "QNN": 60 * _MIB, "CUDA": 470 * _MIB, "Tensorrt": 600 * _MIB}
"""Bytes that a provider's own libraries add to `PROCESS`; CUDA's were measured on an H200 and an H100 with CUDA 13.0.

CUDA's vary from 385 to 640 MiB, by which kernels the driver loads, which no graph tells.
"""

_CUDNN = 70 * _MIB
"""What cuDNN takes beside them for each model with convolutions: it loads the kernels that it tries."""

_PYARROW, _TABLE_WRITER, _PARQUET, _PARQUET_READER = 26 * _MIB, 11 * _MIB, 9 * _MIB, 5 * _MIB
"""pyarrow, what writes tables with it, its library for Parquet, and what reads Parquet with that."""

_TABLES = frozenset({"arrow", "parquet"})

_PILLOW, _TORCH, _OP_STEPS = 8 * _MIB, 400 * _MIB, 15 * _MIB

_CUDA = "CUDAExecutionProvider"

_PROCESS = "process"
"""The part of a job's memory that every job takes."""

_ONNX = 24 * _MIB
"""Bytes of the module onnx, a part of `PROCESS`: if all facts of graphs are remembered, it is not imported."""

_REFERENCE = 10 * _MIB
"""onnx's reference implementation, which computes sizes in a graph that makes Reshapes of them."""

_KEPT_INNER = 2
"""Weights of graphs in branches and bodies stay beside those that kernels have packed, as read and as made.

All others are packed, put in blocks of channels or kept as they are, and are there once in an open session.
"""

_OPENING_CONSTANTS, _OPENING_FILTERS, _OPENING_EXTERNAL = 0.75, 2.8, 0.2
"""What opening takes beside them for a while: this much of the size of Constant nodes, or of weights in other files.

Convolutions over images take all filters once more, and this many times the largest.
"""

_SCRATCH, _BARE = 1.05, 1.15
"""Activations with what kernels take beside them: in units of what the arena holds; of what is in use at once."""

_TEXT = 20
"""Python objects and text of numbers, in units of the numbers' own size."""

_TEXT_VALUE = 64
"""A Python string of some words."""

_LINE_NUMBERS = 16
"""The numbers of its row and its item, int64, in each line of an output that explodes."""

_SHARE = 0.5
"""Of the machine's memory, for runs of several callers at once."""

_CANDIDATES = tuple(2**power for power in range(12, -1, -1))
"""Batch sizes that are tried for advice."""


def forecast_memory(deployment: Deployment) -> dict[str, MemoryForecast]:
    """Return the forecast of each unfinished job of a deployment, by job."""
    return {job.spec.name: _forecast(deployment, job) for job in deployment.jobs if job.has_work}


def without_onnx(forecast: MemoryForecast) -> MemoryForecast:
    """Return a forecast of this process for one that reads no graph."""
    loaded = _loaded_for_graphs()
    parts = (replace(one, size=one.size - loaded) if one.what == _PROCESS else one for one in forecast.parts)
    return replace(forecast, parts=tuple(parts))


def _forecast(deployment: Deployment, job: ResolvedJob) -> MemoryForecast:
    taken = _Taken(job=job, late=_late_bytes(deployment, job))
    callers = taken.fitting_callers(deployment.facts.machine)
    taken = taken.with_callers(callers)
    job = taken.job
    parts, unknown = taken.parts(job.batching.run_size)
    disk = row_sizes(job).disk(job.input.first_row, job.input.rows, job.output.rows)
    limit = job.spec.limits.memory
    machine = deployment.facts.machine
    bound = memory_bound(limit, machine.memory_bytes if machine else None)
    total = sum(part.size for part in parts)
    fitting, count = None, None
    if bound is not None and total > bound:
        if job.batching.fixed is None and job.batching.size:
            smaller = (size for size in _CANDIDATES if size < job.batching.run_size)
            fitting = next((size for size in smaller if taken.total(size) <= bound), None)
        fewer = range(max((one.spec.count for one in job.model.usable), default=1) - 1, 0, -1)
        count = next((most for most in fewer if taken.with_sessions(most).total() <= bound), None)
    layouts = {layout.name: taken.laid_out(layout).total() for layout in deployment.thread_layouts_of(job.model)}
    return MemoryForecast(
        parts=parts,
        unknown=unknown,
        limit=limit,
        fitting=fitting,
        count=count,
        disk=disk,
        thread_layouts={name: size for name, size in layouts.items() if bound is None or size <= bound},
        callers=callers,
    )


def as_run(job: ResolvedJob, callers: int | None) -> ResolvedJob:
    """Return a job with the sessions of its thread layout, and as many callers if that has one for each core."""
    layout = job.thread_layout
    if layout is None:
        return job
    return replace(job, model=job.model.laid_out(replace(layout, callers=layout.callers or callers or 1)))


def memory_bound(limit: int | None, machine: int | None) -> int | None:
    """Return the bytes that a job may take: its limit, or what the machine has; None if neither is known."""
    return min((size for size in (limit, machine) if size), default=None)


class _Taken(Struct, frozen=True, kw_only=True):
    """What a job takes; `late` bytes of its process are not there yet when models are opened."""

    job: ResolvedJob
    late: int

    def laid_out(self, layout: ThreadLayout) -> "_Taken":
        """Return the same for a thread layout."""
        return replace(self, job=replace(self.job, model=self.job.model.laid_out(layout)))

    def with_callers(self, callers: int | None) -> "_Taken":
        """Return the same for a number of callers of its session; None: as many as the manifest says."""
        return replace(self, job=as_run(self.job, callers))

    def fitting_callers(self, machine: MachineFacts | None) -> int | None:
        """Return how many threads may call its session: one for each core, or fewer if memory has no room for them.

        None: the manifest says how many. A job that comes near its limit opens its sessions otherwise, and half of the
        machine is left to others.
        """
        layout = self.job.thread_layout
        if layout is None or layout.callers or machine is None:
            return None
        limits = self.job.spec.limits
        most = min(machine.usable_cores, limits.threads or machine.usable_cores)
        if limits.memory and self.parts(self.job.batching.run_size)[1] is not None:  # nobody knows what a run takes
            return 1
        rooms = [limits.memory and limits.memory * ROOMY, machine.memory_bytes and machine.memory_bytes * _SHARE]
        room = min((one for one in rooms if one), default=None)
        fewer = range(most, 1, -1)
        return next((some for some in fewer if room is None or self.with_callers(some).total() <= room), 1)

    def with_sessions(self, most: int) -> "_Taken":
        """Return the same if at most this number of each of the model's sessions are opened."""
        model = self.job.model
        sessions = tuple(
            replace(one, spec=replace(one.spec, count=min(one.spec.count, most))) for one in model.sessions
        )
        return replace(self, job=replace(self.job, model=replace(model, sessions=sessions)))

    def total(self, batch: int | None = None) -> int:
        """Return the bytes with batches of the job's size, or of another one."""
        return sum(part.size for part in self.parts(batch or self.job.batching.run_size)[0])

    def parts(self, batch: int) -> tuple[tuple[MemoryPart, ...], str | None]:
        """Return the parts of a job's memory with batches of a size, and which of them are unknown."""
        job = self.job
        batch = job.batching.resized(batch).most_run(_rows(job))
        activations = _activation_bytes(job, batch)
        result = _row_bytes(job)
        holds_part = SINKS[job.spec.output.format].PART_COPIES > 0
        unknown = {
            "activations": activations is None,
            "results": result is None,
            "rows": job.is_input_elsewhere,
            "number of rows": holds_part and job.input.rows is None,
        }
        held = job.input.held_bytes
        values = value_bytes(job, batch, _tensor_bytes)
        rows = _row_sizes(job, batch, result).bytes(job.input.rows)
        opening = _opening_bytes(job) - (activations or 0) - rows - values - held - self.late
        found = (
            MemoryPart(what=_PROCESS, size=_process_bytes(job)),
            MemoryPart(what="weights", size=_weight_bytes(job)),
            MemoryPart(what="activations", size=activations or 0),
            MemoryPart(what=ROWS_AND_RESULTS, size=rows),
            *((MemoryPart(what="values of steps", size=values),) if values else ()),
            *((MemoryPart(what="input held whole", size=held),) if held else ()),
            *((MemoryPart(what="opening beyond a run", size=opening),) if opening > 0 else ()),
        )
        return found, " and ".join(what for what, is_so in unknown.items() if is_so) or None


def _activation_bytes(job: ResolvedJob, batch: int) -> int | None:
    """Return what the arenas of all sessions hold after runs of a size; None if a graph leaves that open."""
    if _runs_optimum(job):
        return None
    sizes = _row_sizes(job, batch, _row_bytes(job))
    held = sizes.held_runs(job.input.rows)
    again = runs_again(job.batching.resized(batch), _rows(job), sizes) if _runs_once(job) else None
    found: list[int | None] = []
    for runs in zip(*(_runs(job, size) for size in _sizes_run(job, batch)), strict=True):
        model, shapes = runs[0][0], tuple(tuple(fed.items()) for _, fed in runs)
        arena, pattern = model.spec.session.get("enable_cpu_mem_arena", True), _plans_patterns(job, model)
        how = Running(arena=arena, pattern=pattern, held=held, again=again, in_float=_in_float(model))
        found += _bytes_of_sessions(model, shapes, how)
    found += [_bytes_of_ops(line.graph, batch) for line in op_lines(job)]
    return None if None in found else sum(size or 0 for size in found)


def _bytes_of_sessions(model: ResolvedModel, shapes: Runs, how: Running) -> Iterator[int | None]:
    """Yield what the arenas of a model's sessions hold: one runs the short batch too, and may get a run ahead."""
    yield _bytes_of_runs(model.facts.skeleton, shapes, how)
    others = _runs_at_once(model) - 1
    if others:
        other = _bytes_of_runs(model.facts.skeleton, shapes[:1], replace(how, again=how.again and how.again - 1))
        yield None if other is None else others * other


def _rows(job: ResolvedJob) -> int | None:
    """Return the number of a job's rows, new ones or such as run again, of which no run has more; None: not known."""
    return None if job.input.rows is None else max(job.input.rows, job.input.rerun_rows)


def _runs_once(job: ResolvedJob) -> bool:
    """Return whether each model runs once for a batch, in as many sessions: not item by item, by row, or in a loop."""
    if job.pipeline is None:
        return True
    steps = job.pipeline.types.steps if job.pipeline.types is not None else ()
    once = bool(steps) and not any(step.inner or step.spec.by_row for step in steps)
    return once and len(set(map(_runs_at_once, job.models))) == 1


def _sizes_run(job: ResolvedJob, batch: int) -> Sequence[int]:
    """Return the rows of a batch, and of the short one at the end if there is one."""
    rows = job.input.rows
    if job.batching.size is None or job.batching.pad_to is not None or rows is None or rows <= batch:
        return [batch]
    short = job.batching.resized(batch).short_batch(rows)
    return [batch, short] if short else [batch]


def _bytes_of_ops(graph: OpGraph, batch: int) -> int | None:
    """Return the bytes of op steps; those that run a row at a time, whose sizes may depend on values, take little."""
    sizes = {value.name: value.shape or () for value in graph.inputs}
    fed = {name: tuple(batch if size == ROWS else size for size in shape) for name, shape in sizes.items()}
    known = {name: tuple(size if isinstance(size, int) else None for size in shape) for name, shape in fed.items()}
    from ortdeploy.graph.op_model import op_model  # noqa: PLC0415  brings onnx

    model = op_model(graph).SerializeToString(deterministic=True)
    found = _bytes_of_runs(model, (tuple(known.items()),), Running(arena=True, pattern=True, held=1))
    return found or 0 if graph.by_row else found


def _runs_optimum(job: ResolvedJob) -> bool:
    preset = job.pipeline.spec.preset if job.pipeline else None
    return preset is not None and preset.kind == DIFFUSION


def _runs(job: ResolvedJob, batch: int) -> Iterator[tuple[ResolvedModel, Shapes]]:
    """Yield each model that a job runs, with the shapes that it is fed."""
    if job.pipeline is None:
        yield job.model, job.run_shapes(batch)
        return
    parts = {part.spec.name: part for part in job.pipeline.parts}
    if job.pipeline.types is not None:
        for step, rows in _steps(job.pipeline.types.steps, batch):
            yield parts[step.spec.name], dict(_fed(step, rows))
    elif job.pipeline.spec.preset is not None and job.pipeline.diffusion is not None:
        from ortdeploy.presets.stable_diffusion import painted_shapes  # noqa: PLC0415  only for presets

        for part, fed in painted_shapes(job.pipeline.spec.preset, job.pipeline.diffusion.ports, batch).items():
            yield parts[job.pipeline.spec.preset.parts[part]], dict(fed)


def _steps(steps: Sequence[TypedStep], rows: int) -> Iterator[tuple[TypedStep, int]]:
    """Yield the steps that run a model, with how many rows they run together."""
    for step in steps:
        if step.spec.kind == "run":
            yield step, rows
        if step.inner:
            yield from _steps(step.inner, items_at_once(step, rows))


def _fed(step: TypedStep, rows: int) -> Iterator[tuple[str, Sizes]]:
    """Yield the inputs of a step's model with the sizes that it is fed."""
    for name, tensor in step.types.items():
        sizes = to_place(_sizes(tensor, rows), step.axes.of_input(name))
        yield name, sizes[1:] if step.spec.by_row and tensor.shape and tensor.shape[0] == ROWS else sizes
    for one in step.constants:
        whole = tuple(size if isinstance(size, int) else None for size in one.target.shape or ())
        sizes = whole if one.axis is None else to_place(_sizes(one.target, rows), one.axis)
        yield one.value.name, sizes


def _sizes(tensor: TensorType, rows: int) -> tuple[int | None, ...]:
    """Return the sizes of a value for some rows; state that a model takes whole has no rows."""
    if tensor.shape and isinstance(tensor.shape[0], int):
        return tuple(size if isinstance(size, int) else 1 for size in tensor.shape)
    return (rows, *(size if isinstance(size, int) else None for size in (tensor.shape or ())[1:]))


def _process_bytes(job: ResolvedJob) -> int:
    names = {p.name for model in job.models for session in _sessions(model) for p in session.chain}
    shorts = {provider.short for name in names if (provider := find_provider(name))}
    pictures = job.input.format == "image" or job.spec.output.images
    libraries = _table_bytes({job.input.format}, {job.spec.output.format})
    libraries += (_PILLOW if pictures else 0) + (_TORCH if _runs_optimum(job) else 0)
    libraries += _OP_STEPS if next(op_lines(job), None) is not None else 0
    libraries += _CUDNN * sum(map(_uses_cudnn, job.models))
    return PROCESS - _ONNX + _loaded_for_graphs() + sum(_PROVIDER.get(short, 0) for short in shorts) + libraries


def _uses_cudnn(model: ResolvedModel) -> bool:
    on_cuda = any(provider.name == _CUDA for session in _sessions(model) for provider in session.chain)
    return on_cuda and model.facts.weights.of_convolutions > 0


def _table_bytes(read: AbstractSet[str | None], written: AbstractSet[str]) -> int:
    """Return the bytes of the libraries that read and write tables of some formats."""
    formats = read | written
    return (
        (_PYARROW if formats & _TABLES else 0)
        + (_TABLE_WRITER if written & _TABLES else 0)
        + (_PARQUET if "parquet" in formats else 0)
        + (_PARQUET_READER if "parquet" in read else 0)
    )


def _late_bytes(deployment: Deployment, job: ResolvedJob) -> int:
    """Return the bytes of libraries that are loaded when a job's first part is written, and no earlier."""
    read = {one.input.format for one in deployment.jobs}
    before = {one.spec.output.format for one in takewhile(lambda one: one is not job, deployment.jobs)}
    return _table_bytes(read, before | {job.spec.output.format}) - _table_bytes(read, before)


def _loaded_for_graphs() -> int:
    """Return the bytes of the modules that have been loaded to read graphs."""
    return (_REFERENCE if "onnx.reference" in sys.modules else 0) + (_ONNX if "onnx" in sys.modules else 0)


def _sessions(model: ResolvedModel) -> Sequence[ResolvedSession]:
    return model.usable if model.spec.use == "all" else model.usable[:1]


def _weight_bytes(job: ResolvedJob) -> int:
    """Return the bytes of the weights of all models and adapters."""
    adapters = sum(_file_bytes(facts.path) for facts in job.adapter_facts.values())
    return sum(map(_kept_bytes, job.models)) + adapters


def _kept_bytes(model: ResolvedModel) -> int:
    """Return the bytes of weights in open sessions, the CPU comparison's included; cached models are mapped once."""
    weights, sessions, folded = model.facts.weights, _sessions(model), _folded(model)
    kept = weights.size - folded.replaced + folded.made
    if model.spec.cache and all({p.name for p in session.chain} == {CPU} for session in sessions):
        return kept
    probed = any({p.name for p in session.chain} != {CPU} for session in sessions) and model.is_compared
    kept += weights.filters.filled_up + _KEPT_INNER * weights.of_inner_graphs
    return kept * (_count(model) + probed)


def _folded(model: ResolvedModel) -> FoldedConstants:
    fed = tuple(value.name for value in model.facts.inputs if not value.optional)
    return folded_constants(model.facts.skeleton, fed, _in_float(model))


def _opening_bytes(job: ResolvedJob) -> int:
    """Return what opening takes beside the weights for a while: models open one after the other, so the most counts.

    It goes back to the system before rows run.
    """
    return int(max(map(_opening_bytes_of, job.models), default=0))


def _opening_bytes_of(model: ResolvedModel) -> float:
    """Return what opening a model takes beside its weights: a copy of the largest is made while it is packed.

    Of a weight in a branch or body, the copy is one of those that stay. Constants that are replaced go at the end.
    """
    weights, folded = model.facts.weights, _folded(model)
    if weights.external:
        return max(weights.largest, _OPENING_EXTERNAL * weights.size)
    packed = max(min(weights.largest, weights.size - weights.of_inner_graphs), folded.largest)
    filters = weights.filters.size + _OPENING_FILTERS * weights.filters.largest
    return max(folded.replaced + packed, _OPENING_CONSTANTS * weights.of_constant_nodes + filters)


def _count(model: ResolvedModel) -> int:
    return sum(session.spec.count for session in _sessions(model))


def _runs_at_once(model: ResolvedModel) -> int:
    return sum(session.spec.count * session.spec.callers for session in _sessions(model))


def _file_bytes(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


def _plans_patterns(job: ResolvedJob, model: ResolvedModel) -> bool:
    by_shape = model.spec.memory.pattern_by_shape and job.has_varying_shapes
    return bool(model.spec.session.get("enable_mem_pattern", True)) and not by_shape


@lru_cache(maxsize=256)
def _bytes_of_runs(skeleton: bytes, runs: Runs, how: Running) -> int | None:
    """Return the bytes of the buffers of runs, as `buffer_bytes` does, with what kernels take beside them.

    Cached, because shape inference is slow, and a forecast asks again for every thread layout and number of sessions.
    """
    taken = buffer_bytes(skeleton, runs, how)
    return None if taken is None else int((_SCRATCH if how.arena else _BARE) * taken)


def _in_float(model: ResolvedModel) -> tuple[str, ...]:
    """Return the operators of a model that compute float16 in float32, on the CPU of the first session that it gets."""
    predictions = (session.prediction for session in _sessions(model))
    return next((prediction.in_float for prediction in predictions if prediction is not None), ())


def row_sizes(job: ResolvedJob) -> RowSizes:
    """Return what a row of a job takes on its way, with the job's own batch."""
    return _row_sizes(job, job.batching.most_run(_rows(job)), _row_bytes(job))


def _row_sizes(job: ResolvedJob, batch: int, result: int | None) -> RowSizes:
    row = sum(_tensor_bytes(binding.final) or 0 for binding in job.bindings)
    sink = SINKS[job.spec.output.format]
    is_table = job.input.format in _TABLES
    times = _TEXT if job.input.format in {"csv", "jsonl"} else 1 if is_table or job.input.format == "npy" else 2
    return RowSizes(
        batch=batch,
        runs=max(map(_runs_at_once, job.models), default=1),
        read=times * row,
        joined=is_table,
        result=result,
        rows_per_part=job.spec.output.rows_per_part,
        are_outputs=job.pipeline is None and not job.postprocess,
        read_ahead=BLOCK_BYTES if job.input.format in {"npy", "raw"} else 0,
        block_copies=sink.BLOCK_COPIES,
        piece=sink.PIECE,
        gathered=sink.GATHERED,
        part_copies=sink.PART_COPIES,
        on_disk=job.spec.output.format in {"npy", "npz", "arrow"},
    ).of_rows(job.row_room)


def _row_bytes(job: ResolvedJob) -> int | None:
    """Return what a row's results take, as one line or as its lines; None if the graph leaves a size open."""
    sizes = {name: _tensor_bytes(job.results.get(name, TensorType())) for name in job.columns}
    known = {name: size for name, size in sizes.items() if size is not None}
    if len(known) < len(sizes):
        return None
    exploded = job.spec.output.explode
    if not exploded:
        return sum(known.values())
    _, lines, *_ = job.results[exploded[0]].shape or (0, 0)
    if not isinstance(lines, int):
        return None
    return sum(size if name in exploded else size * lines for name, size in known.items()) + lines * _LINE_NUMBERS


def _tensor_bytes(tensor: TensorType) -> int | None:
    """Return what one row of a tensor takes, rows first; None if a size is open."""
    if tensor.shape is None or tensor.dtype is None:
        return None
    sizes = [size for size in tensor.shape[1:] if isinstance(size, int)]
    if len(sizes) < len(tensor.shape) - 1:
        return None
    return prod(sizes) * (_TEXT_VALUE if tensor.dtype == "string" else numpy_dtype(tensor.dtype).itemsize)
