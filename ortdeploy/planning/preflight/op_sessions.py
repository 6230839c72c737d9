"""Makes ONNX Runtime open the op steps of jobs: in a child to find refusals, and in this process for first rows.

Models with op steps in their graph are opened without their weights, as models are.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.deployment.resolved import Deployment, ResolvedJob, ResolvedModel
from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.models import HOLE
from ortdeploy.facts.preflight import RefusedOperators
from ortdeploy.manifest.document import Path as Place
from ortdeploy.pipelines.op_step import op_runners
from ortdeploy.plan.steps import OpenSession, RunJob
from ortdeploy.planning.make.fusions import fused_steps, opening_of_fused
from ortdeploy.planning.make.op_lines import op_lines, opening_of
from ortdeploy.planning.make.sessions import planned_opening
from ortdeploy.planning.preflight.openings import has_kernels_of, is_on_cpu
from ortdeploy.providers.options import with_texts
from ortdeploy.runtime.trial_opening import TrialRequest, try_to_open
from ortdeploy.sessions.generated_models import make_model
from ortdeploy.sessions.opening import OpenedSession
from ortdeploy.tensors.columns import OpRunners


def open_op_steps(deployment: Deployment, *, elsewhere: bool) -> dict[str, tuple[RefusedOperators, ...]]:
    """Return the op steps that ONNX Runtime refuses, by job; nothing is proven if there is no disk space for graphs.

    `elsewhere`: the plan is for another machine.
    """
    made = [(job.spec.name, one) for job in deployment.jobs if job.model.facts.problem is None for one in _made(job)]
    if not made:
        return {}
    found: dict[str, tuple[RefusedOperators, ...]] = {}
    version = deployment.facts.runtime.version if elsewhere else None
    with suppress(OSError), tempfile.TemporaryDirectory(prefix="ortdeploy-") as name:
        folder = Path(name)
        on_cpu = has_kernels_of(deployment.facts.runtime, elsewhere=elsewhere)
        openings = _open_all([one for _, one in made], folder, version, on_cpu=on_cpu)
        for (job, one), refusal in zip(made, openings, strict=True):
            if refusal is not None:
                refused = RefusedOperators(at=one.at, operators=one.operators, refusal=refusal)
                found[job] = (*found.get(job, ()), refused)
    return found


class _Made(Struct, frozen=True, kw_only=True):
    """A graph made of op steps: those of a line, or those that join a model in its own graph (`fused`)."""

    at: Place
    operators: str
    opening: OpenSession
    opsets: Mapping[str, int]
    fused: ResolvedModel | None = None


def _made(job: ResolvedJob) -> Iterator[_Made]:
    for line in op_lines(job):
        opening = opening_of(line, None)
        yield _Made(at=line.last, operators=line.graph.operators, opening=opening, opsets=line.graph.opsets)
    parts = {model.spec.name: model for model in job.models}
    for step in fused_steps(job):
        model = parts[step.model]
        if model.facts.outline is None or not model.usable:
            continue  # it is proven by the run
        graphs = [one for one in (step.fusion.before, step.fusion.after) if one is not None]
        yield _Made(
            at=(*step.at, "fuse"),
            operators=f'model "{step.model}" with {" and ".join(graph.operators for graph in graphs)} in its graph',
            opening=opening_of_fused(planned_opening(model), step),
            opsets={**model.facts.opsets, **{name: set_ for graph in graphs for name, set_ in graph.opsets.items()}},
            fused=model,
        )


def _open_all(made: Sequence[_Made], folder: Path, elsewhere: str | None, *, on_cpu: bool) -> list[str | None]:
    """Return why ONNX Runtime refuses each graph; None if it does not, or if nothing was proven.

    `on_cpu`: this machine's CPU provider has the kernels of the machine that the plan is for.
    """
    outlines = [one.fused.facts.outline for one in made if one.fused is not None]
    with (folder / HOLE).open("wb") as hole:
        hole.truncate(max((outline.largest for outline in outlines if outline is not None), default=0))
    refusals: dict[int, str | None] = {}
    requests: dict[int, TrialRequest] = {}
    for number, one in enumerate(made):
        try:
            requests[number] = _request(one, folder / f"{number}.onnx", elsewhere, on_cpu=on_cpu)
        except OrtdeployError as error:
            refusals[number] = str(error)
    openings = try_to_open(list(requests.values()))
    refusals |= {number: one.refusal if one else None for number, one in zip(requests, openings, strict=True)}
    return [refusals[number] for number in range(len(made))]


def _request(made: _Made, path: Path, elsewhere: str | None, *, on_cpu: bool) -> TrialRequest:
    """Write a graph, and return what opens it. Raises OrtdeployError if it cannot be made."""
    model = made.fused
    if model is None:
        path.write_bytes(make_model(made.opening))
        return TrialRequest(
            outline=None,
            file=str(path),
            on_cpu=on_cpu,
            extensions=made.opening.extensions,
            domains=sorted(made.opsets),
            opsets=made.opsets,
            elsewhere=elsewhere,
        )
    outline = path.with_suffix(".outline")
    outline.write_bytes(model.facts.outline.model if model.facts.outline else b"")
    path.write_bytes(make_model(replace(made.opening, path=str(outline))))
    domains = {node.domain for node in model.facts.nodes if not node.local}
    return TrialRequest(
        outline=str(path),
        file=str(path),
        on_cpu=on_cpu and is_on_cpu(model),
        options=with_texts(model.session),
        extensions=model.facts.uses_extensions,
        domains=sorted(domains.union(made.opsets)),
        opsets=made.opsets,
        elsewhere=elsewhere,
    )


def open_runners(job: ResolvedJob, step: RunJob) -> OpRunners:
    """Return what runs the op steps of a job's prepare steps. Raises OrtdeployError if one cannot be opened."""
    wanted = [one.op for planned in step.inputs for one in planned.steps if one.op is not None]
    names = {line.name for line in wanted}
    opened = {
        line.session: _open(opening_of(line, job.spec.limits.threads))
        for line in op_lines(job)
        if line.session in names
    }
    return op_runners(wanted, opened)


def _open(step: OpenSession) -> OpenedSession:
    from ortdeploy.runtime.session import OrtRuntime  # noqa: PLC0415  only for op steps

    (candidate,) = step.candidates
    session = OrtRuntime(make_model=make_model).open_session(step, candidate)
    return OpenedSession(session=session, candidate=candidate)
