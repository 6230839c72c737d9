"""Has ONNX Runtime open the op steps of jobs: in a child to find refusals, and in this process for first rows."""

import tempfile
from contextlib import suppress
from pathlib import Path

from ortdeploy.deployment.resolved import Deployment, ResolvedJob
from ortdeploy.facts.preflight import RefusedOperators
from ortdeploy.pipelines.op_step import op_runners
from ortdeploy.plan.steps import OpenSession, RunJob
from ortdeploy.planning.make.op_lines import OpLine, op_lines, opening_of
from ortdeploy.runtime.trial_opening import TrialRequest, try_to_open
from ortdeploy.sessions.made_models import make_model
from ortdeploy.sessions.opening import OpenedSession
from ortdeploy.tensors.columns import OpRunners


def open_op_steps(deployment: Deployment, *, elsewhere: bool) -> dict[str, tuple[RefusedOperators, ...]]:
    """Return the op steps that ONNX Runtime refuses, by job; where there is no room, nothing is proven.

    `elsewhere`: the plan is for another machine, whose kernels this one does not have.
    """
    lines = [(job, line) for job in deployment.jobs if job.model.facts.problem is None for line in op_lines(job)]
    if not lines:
        return {}
    found: dict[str, tuple[RefusedOperators, ...]] = {}
    version = deployment.facts.runtime.version if elsewhere else None
    with suppress(OSError), tempfile.TemporaryDirectory(prefix="ortdeploy-") as folder:
        requests = [_request(line, Path(folder) / f"{index}.onnx", version) for index, (_, line) in enumerate(lines)]
        for (job, line), opening in zip(lines, try_to_open(requests), strict=True):
            if opening is not None and opening.refusal is not None:
                one = RefusedOperators(at=line.last, operators=line.graph.operators, refusal=opening.refusal)
                found[job.spec.name] = (*found.get(job.spec.name, ()), one)
    return found


def _request(line: OpLine, path: Path, elsewhere: str | None) -> TrialRequest:
    path.write_bytes(make_model(opening_of(line, None)))
    opsets = line.graph.opsets
    return TrialRequest(
        outline=None,
        file=str(path),
        on_cpu=elsewhere is None,
        domains=sorted(opsets),
        opsets=opsets,
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
    from ortdeploy.runtime.session import OrtRuntime  # noqa: PLC0415  only who has op steps

    (candidate,) = step.candidates
    session = OrtRuntime(make_model=make_model).open_session(step, candidate)
    return OpenedSession(session=session, candidate=candidate)
