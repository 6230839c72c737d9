"""Judges a deployment by the rules, with what ONNX Runtime and the first rows show."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ortdeploy.diagnostics import Diagnostic, errors_in, has_errors
from ortdeploy.facts.preflight import Preflight
from ortdeploy.plan.selection import run_jobs
from ortdeploy.rules.catalogue import DEPLOYMENT_RULES, OPENING_RULES, PREFLIGHT_RULES, load_rule, load_rules
from ortdeploy.rules.protocol import check_rules

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment
    from ortdeploy.facts.preflight import Opening
    from ortdeploy.plan.steps import Plan


def of_jobs(deployment: "Deployment", names: Collection[str]) -> "Deployment":
    """Return a deployment as if it had some of its jobs only."""
    return replace(deployment, jobs=tuple(job for job in deployment.jobs if job.spec.name in names))


def judge_early(deployment: "Deployment", names: Collection[str]) -> tuple[Diagnostic, ...]:
    """Return what keeps these jobs from running; other findings about them wait until that is mended."""
    if not names:
        return ()
    found = check_rules(load_rules(DEPLOYMENT_RULES), of_jobs(deployment, names), deployment.spec)
    return tuple(one for one in errors_in(found) if one.job in names)


def judge(
    deployment: "Deployment", state: Path, *, elsewhere: bool = False
) -> "tuple[Deployment, tuple[Diagnostic, ...]]":
    """Apply the rules; if none finds an error, run the preflight, and apply the rules that judge it.

    `elsewhere`: the facts are of another machine.
    """
    from ortdeploy.planning.preflight.compiled_models import ask_about_compiled  # noqa: PLC0415  starts a child
    from ortdeploy.planning.preflight.op_sessions import open_op_steps  # noqa: PLC0415  starts a child
    from ortdeploy.planning.preflight.openings import open_models  # noqa: PLC0415  starts a child

    spec = deployment.spec
    diagnostics = check_rules(load_rules(DEPLOYMENT_RULES), deployment, spec)
    rejected = {one.model for one in errors_in(diagnostics) if one.model is not None}
    preflight = Preflight(
        openings=open_models(deployment, rejected, state, elsewhere=elsewhere),
        folders={} if elsewhere else _open_folders(deployment, rejected, state),
        compiled=ask_about_compiled(deployment, rejected, elsewhere=elsewhere),
        refused_operators=open_op_steps(deployment, elsewhere=elsewhere),
    )
    deployment = replace(deployment, preflight=preflight)
    diagnostics += check_rules(load_rules(OPENING_RULES), deployment, spec)
    if deployment.jobs and not has_errors(diagnostics):
        deployment = _preflight_jobs(deployment, state, elsewhere=elsewhere)
        diagnostics += check_rules(load_rules(PREFLIGHT_RULES), deployment, spec)
    return deployment, diagnostics


def _open_folders(deployment: "Deployment", rejected: Collection[str], state: Path) -> "Mapping[str, Opening]":
    """Return the outcome of opening the folders of models that write."""
    if all(one.preset is None for one in deployment.spec.pipelines):
        return {}
    from ortdeploy.planning.preflight.generation_folders import open_folders  # noqa: PLC0415  few models write

    return open_folders(deployment, rejected, state)


def judge_memory(deployment: "Deployment", plan: "Plan") -> tuple[Diagnostic, ...]:
    """Return what is wrong with the memory that the jobs of a plan take, as it was measured."""
    forecasts = {step.job: step.limits.forecast for step in run_jobs(plan) if step.limits.forecast is not None}
    measured = replace(deployment, preflight=replace(deployment.preflight, memory=forecasts))
    return check_rules((load_rule("over-memory-limit"),), measured, deployment.spec)


def _preflight_jobs(deployment: "Deployment", state: Path, *, elsewhere: bool) -> "Deployment":
    """Return the deployment with the outcome of its jobs' preflight; no rule may have found an error before."""
    from ortdeploy.planning.preflight.batch_sizes import (  # noqa: PLC0415  only what has jobs
        find_largest,
        most_searched,
        try_batches,
    )
    from ortdeploy.planning.preflight.first_rows import look_at_rows  # noqa: PLC0415  only what has jobs
    from ortdeploy.planning.preflight.memory_estimate import forecast_memory  # noqa: PLC0415  only what has jobs

    first_rows = look_at_rows(deployment)
    rooms = {name: found.room for name, found in first_rows.items()}
    jobs = tuple(replace(job, row_room=rooms.get(job.spec.name, job.row_room)) for job in deployment.jobs)
    jobs = tuple(replace(job, batching=job.batching.bounded(most_searched(job))) for job in jobs)
    deployment = replace(deployment, jobs=jobs)
    preflight = replace(
        deployment.preflight,
        first_rows=first_rows,
        refused_batches=try_batches(deployment),
        largest_values=find_largest(deployment),
        memory=forecast_memory(deployment, state, elsewhere=elsewhere),
    )
    return replace(deployment, preflight=preflight)
