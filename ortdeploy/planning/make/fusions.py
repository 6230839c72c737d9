"""Writes down models that have op steps in their own session (fused)."""

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.deployment.fusing import neighbours
from ortdeploy.deployment.number_formats import narrowing_of
from ortdeploy.deployment.resolved import ResolvedJob, ResolvedModel
from ortdeploy.deployment.typed_steps import TypedStep
from ortdeploy.manifest.document import Path
from ortdeploy.plan.op_graph import Fusion, OpGraph
from ortdeploy.plan.pipeline import PlannedValue, PlannedWireStep
from ortdeploy.plan.steps import OpenSession
from ortdeploy.planning.make.op_lines import lists_of_steps, values_read
from ortdeploy.tensors.types import ROWS, TensorType


class FusedStep(Struct, frozen=True, kw_only=True):
    """A step that runs a model with op steps in its graph, and these op steps, by the last one of each line."""

    at: Path
    model: str
    lines: frozenset[Path]
    fusion: Fusion
    planned: PlannedWireStep


def fused_steps(job: ResolvedJob) -> Iterator[FusedStep]:
    """Yield the steps of a job's pipeline that fuse."""
    models = {model.spec.name: model for model in job.models}
    for name, steps, wanted in lists_of_steps(job):
        for index, step in enumerate(steps):
            if step.spec.fuse:
                fused = _fused(name, steps, index, wanted)
                yield replace(fused, planned=_checked(fused.planned, models.get(step.spec.name)))


def _checked(step: PlannedWireStep, model: ResolvedModel | None) -> PlannedWireStep:
    """Return a step with what the providers of its session, which compute its op steps too, make of fed numbers."""
    return replace(step, takes=tuple(replace(one, narrowed_by=narrowing_of(model, one.dtype)) for one in step.takes))


def _fused(name: str, steps: Sequence[TypedStep], index: int, wanted: set[str]) -> FusedStep:
    step, places = steps[index], neighbours(steps, index)
    before, after = (_graph(steps, place) for place in places)
    last = places[1] if places[1] is not None else index
    read = wanted | {value for later in steps[last + 1 :] for value in values_read(later)}
    inside = {*step.spec.wires.values(), *(value.name for value in (after.inputs if after else ()))}
    before, after = _giving(before, read | inside), _giving(after, read)
    gives = tuple((port, value) for port, value in step.spec.outputs if value in read | inside)
    made_before = {value.name for value in (before.outputs if before else ())}
    made = [*made_before, *(value for _, value in gives)]
    fed = [
        *(value.name for value in (before.inputs if before else ())),
        *(value for value in step.spec.wires.values() if value not in made_before),
        *(value.name for value in (after.inputs if after else ()) if value.name not in made),
    ]
    results = [*made, *(value.name for value in (after.outputs if after else ()))]
    fusion = Fusion(
        before=before,
        after=after,
        takes=tuple(step.spec.wires.items()),
        gives=gives,
        inputs=tuple(dict.fromkeys(fed)),
        outputs=tuple(sorted(read.intersection(results))),
    )
    first = index if places[0] is None else _first(steps, places[0])
    session = f"{name}.{first}-{last}"
    ends = frozenset(steps[place].spec.at for place in places if place is not None)
    return FusedStep(
        at=step.spec.at,
        model=step.spec.name,
        lines=ends,
        fusion=fusion,
        planned=_planned(session, steps[first : last + 1], step, fusion),
    )


def _graph(steps: Sequence[TypedStep], place: int | None) -> OpGraph | None:
    op = steps[place].op if place is not None else None
    return op.graph if op is not None else None


def _giving(graph: OpGraph | None, read: set[str]) -> OpGraph | None:
    if graph is None:
        return None
    return replace(graph, outputs=tuple(value for value in graph.outputs if value.name in read))


def _first(steps: Sequence[TypedStep], last: int) -> int:
    """Return the first place of the line of op steps that ends at `last`."""
    op = steps[last].op
    first = last
    while first > 0 and op is not None and op.goes_on_from(steps[first - 1].op):
        first -= 1
    return first


def _planned(session: str, around: Sequence[TypedStep], step: TypedStep, fusion: Fusion) -> PlannedWireStep:
    """Return the step that runs the fused session; its inputs and outputs have the names of the pipeline's values."""
    types: dict[str, TensorType] = {}
    for one in around:
        reaching = {value: one.types[place] for place, value in one.spec.wires.items() if place in one.types}
        types |= {**reaching, **one.made}
    ports = {step.spec.wires[port.name]: port for port in step.ports}
    types |= {value: port.tensor for value, port in ports.items() if value in fusion.inputs}
    takes = (_value(value, types.get(value, TensorType())) for value in fusion.inputs)
    limits = {value: port.limits for value, port in ports.items() if port.limits}
    return PlannedWireStep(
        kind="run",
        name=session,
        wires=tuple((value, value) for value in fusion.inputs),
        takes=tuple(replace(one, limits=limits.get(one.name)) for one in takes),
        options={},
        outputs=tuple((value, value) for value in fusion.outputs),
        makes=tuple(_value(value, types[value]) for value in fusion.outputs),
        adapters=(),
        item="",
        batch=step.spec.batch,
        most=None,
        steps=(),
        fixed_rows=step.fixed_rows,
    )


def _value(name: str, tensor: TensorType) -> PlannedValue:
    shape = None if tensor.shape is None else (ROWS, *tensor.shape[1:])
    return PlannedValue(name=name, dtype=tensor.dtype, shape=shape, layout=tensor.layout)


def opening_of_fused(opening: OpenSession, step: FusedStep) -> OpenSession:
    """Return the step that opens a model with op steps in its graph."""
    return replace(opening, session=step.planned.name, fusion=step.fusion, thread_layouts=())
