"""Estimates how much memory the jobs of a deployment take, and looks up what they took: nothing is run.

An estimate is a sum of what is known: the process with its libraries, weights, values that are in use at once by shape
inference, and rows on their way. It may be wrong by a factor of two, so a job with a limit is measured before it runs.
The sizes of libraries were measured on Linux with onnxruntime 1.31.1.
"""

from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ortdeploy.deployment.model_runs import Shapes, model_runs
from ortdeploy.deployment.resolved import Deployment, ResolvedJob, ResolvedModel, ResolvedSession, json_digest
from ortdeploy.facts.host import MachineFacts
from ortdeploy.facts.memory import PROCESS_PART, ROOMY, ROWS_AND_RESULTS, WEIGHTS_PART, MemoryForecast, MemoryPart
from ortdeploy.files.memory_budget import PROCESS
from ortdeploy.manifest.pipelines import DIFFUSION, GENERATE, TEXT_TO_IMAGE
from ortdeploy.plan.op_graph import OpGraph
from ortdeploy.plan.plan_file import encode
from ortdeploy.plan.thread_layout import ThreadLayout
from ortdeploy.planning.make.op_lines import op_lines
from ortdeploy.planning.preflight.remembered_memory import for_rows
from ortdeploy.planning.preflight.row_sizes import RowSizes
from ortdeploy.planning.remembered.graph_cache import live_bytes
from ortdeploy.providers.catalogue import CPU, find_provider
from ortdeploy.providers.options import with_texts
from ortdeploy.sinks.catalogue import SINKS
from ortdeploy.sources.mapped import BLOCK_BYTES
from ortdeploy.tensors.elements import numpy_dtype
from ortdeploy.tensors.types import ROWS, TensorType
from ortdeploy.versions import PACKAGES, package_version, runtime_version

_MIB = 1024 * 1024

_PROVIDER = {"OpenVINO": 120 * _MIB, "QNN": 60 * _MIB, "CUDA": 470 * _MIB, "Tensorrt": 600 * _MIB}
"""Bytes that a provider's own libraries add to `PROCESS`; CUDA's were measured on an H200 and an H100 with CUDA 13.0.

CUDA's vary from 385 to 640 MiB, by which kernels the driver loads, which no graph tells.
"""

_CUDNN = 70 * _MIB
"""What cuDNN takes beside them for each model with convolutions: it loads the kernels that it tries."""

_TABLE_LIBRARIES = 45 * _MIB
"""pyarrow, with what reads and writes tables; it is loaded as late as the first part is written."""

_TABLES = frozenset({"arrow", "parquet"})

_PILLOW, _PYAV, _TORCH, _OP_STEPS, _GENAI = 8 * _MIB, 32 * _MIB, 400 * _MIB, 15 * _MIB, 28 * _MIB

_CUDA = "CUDAExecutionProvider"

_TEXT = 20
"""Python objects and text of numbers, in units of the numbers' own size."""

_TEXT_VALUE = 64
"""A Python string of some words."""

_LINE_NUMBERS = 16
"""The numbers of its row and its item, int64, in each line of an output that explodes."""

_SHARE = 0.5
"""Of the machine's memory, for runs of several callers at once."""


def forecast_memory(deployment: Deployment, state_dir: Path, *, elsewhere: bool) -> dict[str, MemoryForecast]:
    """Return the forecast of each unfinished job of a deployment, by job.

    `elsewhere`: it is for another machine, of which nothing is remembered here.
    """
    known = None if elsewhere else state_dir
    return {job.spec.name: _forecast(deployment, job, known) for job in deployment.jobs if job.has_work}


def _forecast(deployment: Deployment, job: ResolvedJob, state_dir: Path | None) -> MemoryForecast:
    machine, key = deployment.facts.machine, "" if state_dir is None else _key(job)
    callers = _fitting_callers(job, machine)
    job = as_run(job, callers)
    parts, unknown = _parts(job)
    bound = memory_bound(job.spec.limits.memory, machine.memory_bytes if machine else None)
    layouts = {one.name: _total(_laid_out(job, one)) for one in deployment.thread_layouts_of(job.model)}
    forecast = MemoryForecast(
        parts=parts,
        unknown=unknown,
        limit=job.spec.limits.memory,
        bound=bound,
        key=key,
        arena=_arena(job),
        disk=row_sizes(job).disk(job.input.first_row, job.input.rows, job.output.rows),
        thread_layouts={name: size for name, size in layouts.items() if bound is None or size <= bound},
        callers=callers,
    )
    return forecast if state_dir is None else for_rows(forecast, row_sizes(job), state_dir, _rows(job))


def _key(job: ResolvedJob) -> str:
    """Return the key under which is remembered what a job takes: all that it depends on beside rows and callers."""
    models: list[list[Any]] = [
        [
            model.sha256,
            with_texts(model.session),
            [[one.spec.name, one.spec.count, one.spec.callers, [p.name for p in one.chain]] for one in model.usable],
            [model.spec.use, model.spec.cache, encode(model.spec.memory)],
        ]
        for model in job.models
    ]
    layout = job.thread_layout and job.thread_layout.name
    run = [job.batching.most_run(_rows(job)), job.input.format, job.spec.limits.threads, layout]
    versions = [runtime_version(), *map(package_version, PACKAGES)]
    return json_digest([job.identity, job.layout, models, run, versions])


def _arena(job: ResolvedJob) -> bool | None:
    """Return what the manifest says of the CPU arena; None if it may be left out where memory is scarce."""
    said: list[bool | None] = [
        model.spec.session.get("enable_cpu_mem_arena", model.spec.memory.shared_arena or None) for model in job.models
    ]
    return None if None in said else all(said)


def as_run(job: ResolvedJob, callers: int | None) -> ResolvedJob:
    """Return a job with the sessions of its thread layout, and as many callers if that has one for each core."""
    layout = job.thread_layout
    if layout is None:
        return job
    return _laid_out(job, replace(layout, callers=layout.callers or callers or 1))


def _laid_out(job: ResolvedJob, layout: ThreadLayout) -> ResolvedJob:
    return replace(job, model=job.model.laid_out(layout))


def memory_bound(limit: int | None, machine: int | None) -> int | None:
    """Return the bytes that a job may take: its limit, or what the machine has; None if neither is known."""
    return min((size for size in (limit, machine) if size), default=None)


def _fitting_callers(job: ResolvedJob, machine: MachineFacts | None) -> int | None:
    """Return how many threads may call a job's session: one for each core, or fewer if memory has no room for them.

    None: the manifest says how many. A job that comes near its limit opens its sessions otherwise, and half of the
    machine is left to others.
    """
    layout, limits = job.thread_layout, job.spec.limits
    if layout is None or layout.callers or machine is None:
        return None
    most = min(machine.usable_cores, limits.threads or machine.usable_cores)
    if limits.memory and _parts(job)[1] is not None:  # nobody knows what a run takes
        return 1
    rooms = [limits.memory and limits.memory * ROOMY, machine.memory_bytes and machine.memory_bytes * _SHARE]
    room = min((one for one in rooms if one), default=None)
    fewer = range(most, 1, -1)
    return next((some for some in fewer if room is None or _total(as_run(job, some)) <= room), 1)


def _total(job: ResolvedJob) -> int:
    """Return the bytes that a job takes by estimate."""
    return sum(part.size for part in _parts(job)[0])


def _parts(job: ResolvedJob) -> tuple[tuple[MemoryPart, ...], str | None]:
    """Return the parts of a job's memory by estimate, and which of them are unknown."""
    batch = job.batching.most_run(_rows(job))
    activations, cache = _activation_bytes(job, batch), _cache_bytes(job, batch)
    result = _row_bytes(job)
    holds_part = SINKS[job.spec.output.format].PART_COPIES > 0
    unknown = {
        "activations": activations is None,
        "results": result is None,
        "rows": job.is_input_elsewhere,
        "number of rows": holds_part and job.input.rows is None,
    }
    held, values = job.input.held_bytes, _step_bytes(job, batch)
    found = (
        MemoryPart(what=PROCESS_PART, size=_process_bytes(job)),
        MemoryPart(what=WEIGHTS_PART, size=_weight_bytes(job)),
        MemoryPart(what="activations", size=activations or 0),
        *((MemoryPart(what="keys and values", size=cache),) if cache else ()),
        MemoryPart(what=ROWS_AND_RESULTS, size=row_sizes(job).bytes(_rows(job))),
        *((MemoryPart(what="libraries of tables", size=_TABLE_LIBRARIES),) if _reads_tables(job) else ()),
        *((MemoryPart(what="values of steps", size=values),) if values else ()),
        *((MemoryPart(what="input held whole", size=held),) if held else ()),
    )
    return found, " and ".join(what for what, is_so in unknown.items() if is_so) or None


def _activation_bytes(job: ResolvedJob, batch: int) -> int | None:
    """Return the bytes of values of all runs at once; None if a graph leaves that open."""
    if _kind(job) in {DIFFUSION, GENERATE}:
        return None
    found = [
        None if size is None else _runs_at_once(model) * size
        for model, shapes in runs_of(job, batch)
        for size in [live_bytes(model.facts.skeleton, tuple(shapes.items()))]
    ]
    found += [_bytes_of_ops(line.graph, batch) for line in op_lines(job)]
    return None if None in found else sum(size or 0 for size in found)


def _rows(job: ResolvedJob) -> int | None:
    """Return the number of a job's rows, new ones or such as run again, of which no run has more; None: not known."""
    return None if job.input.rows is None else max(job.input.rows, job.input.rerun_rows)


def _bytes_of_ops(graph: OpGraph, batch: int) -> int | None:
    """Return the bytes of op steps; those that run a row at a time, whose sizes may depend on values, take little."""
    sizes = {value.name: value.shape or () for value in graph.inputs}
    fed = {name: tuple(batch if size == ROWS else size for size in shape) for name, shape in sizes.items()}
    known = {name: tuple(size if isinstance(size, int) else None for size in shape) for name, shape in fed.items()}
    from ortdeploy.graph.op_model import op_model  # noqa: PLC0415  brings onnx

    model = op_model(graph).SerializeToString(deterministic=True)
    found = live_bytes(model, tuple(known.items()))
    return found or 0 if graph.by_row else found


def _kind(job: ResolvedJob) -> str | None:
    """Return the preset that a job runs, if it runs one."""
    preset = job.pipeline.spec.preset if job.pipeline else None
    return None if preset is None else preset.kind


def _cache_bytes(job: ResolvedJob, batch: int) -> int:
    """Return what keys and values of rows that are written together take, with all beams, if they fill the context."""
    preset, found = (job.pipeline.spec.preset, job.pipeline.diffusion) if job.pipeline else (None, None)
    if preset is None or found is None or preset.kind != GENERATE:
        return 0
    beams = preset.arguments.get("num_beams", found.ports.get("search", {}).get("num_beams", 1))
    return batch * int(beams) * int(found.ports.get("cache_bytes", 0))


def runs_of(job: ResolvedJob, batch: int) -> Iterator[tuple[ResolvedModel, Shapes]]:
    """Yield each model that a job runs, with the shapes that it is fed; none that another library runs."""
    if job.pipeline is None or job.pipeline.types is not None:
        yield from ((run.model, run.shapes) for run in model_runs(job, batch))
    elif job.pipeline.spec.preset is not None and job.pipeline.diffusion is not None and _kind(job) == TEXT_TO_IMAGE:
        from ortdeploy.presets.stable_diffusion import painted_shapes  # noqa: PLC0415  only for presets

        parts = {part.spec.name: part for part in job.pipeline.parts}
        for part, fed in painted_shapes(job.pipeline.spec.preset, job.pipeline.diffusion.ports, batch).items():
            yield parts[job.pipeline.spec.preset.parts[part]], dict(fed)


def _step_bytes(job: ResolvedJob, rows: int) -> int:
    """Return the bytes of the values that the steps of a pipeline make of some rows, but for its outputs."""
    if job.pipeline is None or job.pipeline.types is None:
        return 0
    results = job.pipeline.spec.outputs.values()
    made = (one for step in job.pipeline.types.steps for one in step.made.items())
    return sum(rows * (_tensor_bytes(tensor) or 0) for name, tensor in made if name not in results)


def _process_bytes(job: ResolvedJob) -> int:
    names = {p.name for model in job.models for session in _sessions(model) for p in session.chain}
    shorts = {provider.short for name in names if (provider := find_provider(name))}
    libraries = _PILLOW if job.input.format == "image" or job.spec.output.images else 0
    libraries += _PYAV if job.input.format == "video" else 0
    libraries += {DIFFUSION: _TORCH, GENERATE: _GENAI}.get(_kind(job) or "", 0)
    libraries += _OP_STEPS if next(op_lines(job), None) is not None else 0
    libraries += _CUDNN * sum(map(_uses_cudnn, job.models))
    return PROCESS + sum(_PROVIDER.get(short, 0) for short in shorts) + libraries


def _reads_tables(job: ResolvedJob) -> bool:
    """Return whether a job reads or writes tables."""
    return not _TABLES.isdisjoint((job.input.format or "", job.spec.output.format))


def _uses_cudnn(model: ResolvedModel) -> bool:
    on_cuda = any(provider.name == _CUDA for session in _sessions(model) for provider in session.chain)
    return on_cuda and model.facts.weights.of_convolutions > 0


def _sessions(model: ResolvedModel) -> Sequence[ResolvedSession]:
    return model.usable if model.spec.use == "all" else model.usable[:1]


def _weight_bytes(job: ResolvedJob) -> int:
    """Return the bytes of the weights of all models and adapters."""
    adapters = sum(_file_bytes(facts.path) for facts in job.adapter_facts.values())
    return sum(map(_kept_bytes, job.models)) + adapters


def _kept_bytes(model: ResolvedModel) -> int:
    """Return the bytes of weights in open sessions, the CPU comparison's included; cached models are mapped once."""
    sessions = _sessions(model)
    is_on_cpu = all({p.name for p in session.chain} == {CPU} for session in sessions)
    if model.spec.cache and is_on_cpu:
        return model.facts.weights.size
    return model.facts.weights.size * (sum(one.spec.count for one in sessions) + (not is_on_cpu and model.is_compared))


def _runs_at_once(model: ResolvedModel) -> int:
    return sum(session.spec.count * session.spec.callers for session in _sessions(model))


def _file_bytes(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


def row_sizes(job: ResolvedJob) -> RowSizes:
    """Return what a row of a job takes on its way."""
    row = sum(_tensor_bytes(binding.final) or 0 for binding in job.bindings)
    sink = SINKS[job.spec.output.format]
    is_table = job.input.format in _TABLES
    times = _TEXT if job.input.format in {"csv", "jsonl"} else 1 if is_table or job.input.format == "npy" else 2
    return RowSizes(
        batch=job.batching.most_run(_rows(job)),
        runs=max(map(_runs_at_once, job.models), default=1),
        read=times * row,
        joined=is_table,
        result=_row_bytes(job),
        rows_per_part=job.spec.output.rows_per_part,
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
