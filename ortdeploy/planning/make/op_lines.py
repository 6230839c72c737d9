"""Writes down op steps: those that follow each other (a line) become one graph with its own session."""

import hashlib
import json
from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.deployment.op_steps import OpStep
from ortdeploy.deployment.resolved import ResolvedJob
from ortdeploy.deployment.threads import sleeping, with_threads
from ortdeploy.deployment.typed_steps import TypedStep
from ortdeploy.facts.host import EXTENSION_DOMAINS
from ortdeploy.manifest.document import Path
from ortdeploy.manifest.pipelines import walk
from ortdeploy.plan.op_graph import OpGraph
from ortdeploy.plan.pipeline import PlannedValue, PlannedWireStep
from ortdeploy.plan.plan_file import encode
from ortdeploy.plan.steps import OpenSession, PlannedProvider, PlannedSession
from ortdeploy.providers.catalogue import CPU
from ortdeploy.providers.options import with_texts
from ortdeploy.tensors.types import ROWS


class OpLine(Struct, frozen=True, kw_only=True):
    """Op steps that follow each other, the last of them at `last`: their graph, with the results that others read."""

    session: str
    graph: OpGraph
    last: Path


def op_lines(job: ResolvedJob) -> Iterator[OpLine]:
    """Yield the lines of op steps of a job: those of prepare, of its pipeline and of postprocess."""
    name = job.spec.name
    for binding in job.bindings:
        for places, op in _lines(binding.ops):
            result = {value.name for value in op.graph.outputs[-1:]}
            at = binding.steps[places[-1]].at
            yield from _line(f"{name}:prepare.{binding.value.name}", places, op, result, at)
    for place, steps, wanted in lists_of_steps(job):
        for places, op in _lines([step.op for step in steps]):
            read = wanted | {value for later in steps[places[-1] + 1 :] for value in values_read(later)}
            yield from _line(place, places, op, read, steps[places[-1]].spec.at)
    for places, op in _lines(job.postprocess_ops):
        read = {*job.columns, *(column for step in job.postprocess[places[-1] + 1 :] for column in step.reads)}
        yield from _line(f"{name}:postprocess", places, op, read, job.postprocess[places[-1]].at)


def lists_of_steps(job: ResolvedJob) -> Iterator[tuple[str, Sequence[TypedStep], set[str]]]:
    """Yield the steps of a job's pipeline, and the steps of each `each`, with a name and the values read after them."""
    if job.pipeline is not None and job.pipeline.types is not None:
        spec = job.pipeline.spec
        wanted = {*spec.outputs.values(), *spec.state.values()}
        yield from _lists(job.pipeline.types.steps, wanted, f"{job.spec.name}:steps")


def _lists(
    steps: Sequence[TypedStep], wanted: set[str], name: str
) -> Iterator[tuple[str, Sequence[TypedStep], set[str]]]:
    yield name, steps, wanted
    for index, step in enumerate(steps):
        if step.inner:
            yield from _lists(step.inner, {value for value, _ in step.spec.outputs}, f"{name}.{index}.steps")


def _lines(ops: Sequence[OpStep | None]) -> Iterator[tuple[range, OpStep]]:
    """Yield the places of op steps that follow each other, and the last of them, whose graph has all of them."""
    begin = 0
    for index, op in enumerate(ops):
        after = ops[index + 1] if index + 1 < len(ops) else None
        if op is None:
            begin = index + 1
        elif after is None or not after.goes_on_from(op):
            yield range(begin, index + 1), op
            begin = index + 1


def _line(name: str, places: range, op: OpStep, read: set[str], last: Path) -> Iterator[OpLine]:
    """Yield a line, if anything reads its results."""
    graph = replace(op.graph, outputs=tuple(value for value in op.graph.outputs if value.name in read))
    place = f"{places[0]}" if len(places) == 1 else f"{places[0]}-{places[-1]}"
    if graph.outputs:
        yield OpLine(session=f"{name}.{place}", graph=graph, last=last)


def values_read(step: TypedStep) -> Iterator[str]:
    """Yield the values that a step reads, including those that its inner steps read."""
    for spec in walk([step.spec]):
        yield from spec.wires.values()
        if spec.kind == "each":
            yield spec.name


def planned_line(line: OpLine) -> PlannedWireStep:
    """Return the step that runs a line."""
    graph = line.graph
    return PlannedWireStep(
        kind="op",
        name=line.session,
        wires=tuple((value.name, value.name) for value in graph.inputs),
        takes=tuple(_of_rows(value, graph) for value in graph.inputs),
        options={},
        outputs=tuple((value.name, value.name) for value in graph.outputs),
        makes=tuple(_of_rows(value, graph) for value in graph.outputs),
        adapters=(),
        item="",
        batch=0,
        most=None,
        steps=(),
        by_row=graph.by_row,
    )


def _of_rows(value: PlannedValue, graph: OpGraph) -> PlannedValue:
    """Return a value of a graph as [rows, …]."""
    return replace(value, shape=(ROWS, *value.shape)) if graph.by_row and value.shape is not None else value


def opening_of(line: OpLine, threads: int | None) -> OpenSession:
    """Return the step that opens a line's session: on the CPU provider, with as many threads as its job may use.

    Its threads sleep between runs, in which models compute.
    """
    cpu = PlannedSession(name="cpu", providers=(PlannedProvider(name=CPU, options={}),))
    digest = hashlib.sha256(json.dumps(encode(line.graph), sort_keys=True).encode()).hexdigest()
    return OpenSession(
        session=line.session,
        model=line.session,
        path="",
        sha256=digest,
        candidates=(cpu,),
        use="first",
        on_unavailable="fail",
        cpu_fallback="allow",
        probe=None,
        options=with_texts(with_threads(sleeping({}), threads)),
        run_options={},
        cache=False,
        graph=line.graph,
        extensions=not line.graph.opsets.keys().isdisjoint(EXTENSION_DOMAINS),
    )
