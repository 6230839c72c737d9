"""`ortdeploy apply`: plan a manifest and run the plan; a saved plan is made again and must be the same."""

import argparse
import os
import sys
import uuid
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import structlog

from ortdeploy.cli.children.apply import run_plan
from ortdeploy.cli.commands.shared import load_options, plan_root, start_logging, use_color, write_diagnostics
from ortdeploy.cli.exit_codes import EXIT_OK, EXIT_PAUSED, EXIT_REJECTED
from ortdeploy.cli.signals import StopFlag
from ortdeploy.cli.streams import overheard
from ortdeploy.diagnostics import OrtdeployError, UsageError, has_errors
from ortdeploy.files.names import is_file
from ortdeploy.plan.selection import job_names, keep_jobs
from ortdeploy.plan.steps import Plan, RunJob
from ortdeploy.planning.known_graphs import keep_waiting
from ortdeploy.planning.nothing_to_do import Recollection
from ortdeploy.planning.rests_on import rests_on
from ortdeploy.planning.saved_plan import MAX_BYTES, is_plan_file, load_plans
from ortdeploy.planning.workflow import Planned, plan_again, plan_manifests, select_jobs, state_folder
from ortdeploy.results.results import JobResult, Status
from ortdeploy.running.executor import Execution
from ortdeploy.running.gone_files import note_gone_files
from ortdeploy.views import json, text

log = structlog.get_logger()

_BAD = (Status.FAILED, Status.INTERRUPTED)
_OPTIONS_OF_PLANS = {"--new-run": "new_run", "--profile": "profile", "--set": "sets", "--overlay": "overlays"}


def run(arguments: argparse.Namespace) -> int:
    """Plan, show the plan, run it, say how each job ended; remember that there was nothing to do.

    A manifest that is refused does not stop the others.
    """
    recollection = Recollection(arguments)
    with overheard() as said:
        planned, code = _run(arguments)
    if code == EXIT_OK and planned.deployments:
        with suppress(OrtdeployError):  # a state folder that has come to lead elsewhere keeps nothing
            state_dir = state_folder(planned.plans[0].folder, arguments.state_dir, planned.plans[0].roots)
            keep_waiting(state_dir)
            if not any(plan.steps for plan in planned.plans):
                rested_on = rests_on(planned.deployments, arguments.paths, state_dir)
                recollection.keep(rested_on, str(state_dir), said.text())
    return code


def _run(arguments: argparse.Namespace) -> tuple[Planned, int]:
    with ExitStack() as stack:
        start_logging(arguments, stack)
        planned = _load_or_plan(arguments)
        rejected = has_errors(planned.diagnostics)
        if arguments.format != "json":
            write_diagnostics(planned.diagnostics, arguments)
        if arguments.format == "text" and (planned.plans or not rejected) and not arguments.quiet:
            shown = text.render_plan(planned.plans, color=use_color(arguments), verbose=arguments.verbose)
            sys.stdout.write(shown)
            sys.stdout.flush()
        results: tuple[JobResult, ...] = ()
        stopped = StopFlag()
        if planned.plans:
            with stopped.installed():
                results = _execute(planned.plans, arguments, stopped)
    if arguments.format == "json":
        sys.stdout.write(json.render_apply(planned.diagnostics, planned.plans, results))
    elif arguments.format != "sarif":
        told = [one for one in results if not arguments.quiet or one.status in _BAD]
        sys.stdout.write(text.render_results(told, color=use_color(arguments)))
    if any(result.status is Status.INTERRUPTED for result in results):
        return planned, stopped.exit_code
    if rejected or any(result.status is Status.FAILED for result in results):
        return planned, EXIT_REJECTED
    return planned, EXIT_PAUSED if any(result.status is Status.PAUSED for result in results) else EXIT_OK


def _load_or_plan(arguments: argparse.Namespace) -> Planned:
    """Plan from manifests, or once more what a plan file holds, whose own text is only compared."""
    raw = _plan_file(arguments.paths) if arguments.command == "apply" else None
    if raw is not None:
        return _plan_of_file(raw, arguments)
    if getattr(arguments, "root", None) is not None:
        raise UsageError("--root says what the paths of a saved plan are relative to, and this is none")
    return plan_manifests(
        arguments.paths,
        load_options(arguments),
        state_dir=arguments.state_dir,
        jobs=arguments.jobs,
        excluded=arguments.excluded,
        new_run=arguments.new_run,
        retry=arguments.command == "retry",
    )


def _plan_of_file(raw: bytes, arguments: argparse.Namespace) -> Planned:
    given = [flag for flag, name in _OPTIONS_OF_PLANS.items() if getattr(arguments, name)]
    if given:
        raise UsageError(f"{given[0]} is for manifests: a saved plan has been made with its own. Make the plan again")
    file = Path(arguments.paths[0])
    roots = tuple(os.path.abspath(root) for root in arguments.roots)  # noqa: PTH100  keeps links, as paths below do
    saved, diagnostics = load_plans(raw, str(file), plan_root(arguments.root, file), roots)
    if diagnostics:
        return Planned(plans=(), diagnostics=diagnostics)
    planned = plan_again(saved, roots, arguments.state_dir)
    if has_errors(planned.diagnostics):
        return replace(planned, plans=())
    if arguments.jobs is None and not arguments.excluded:
        return planned
    known = [name for plan in planned.plans for name in job_names(plan)]
    jobs = select_jobs(arguments.jobs, arguments.excluded, known)
    return replace(planned, plans=tuple(keep_jobs(plan, jobs) for plan in planned.plans))


def _plan_file(paths: Sequence[str]) -> bytes | None:
    """Return the bytes of a plan file; None when the path is a manifest or a folder."""
    path = Path(paths[0])
    if len(paths) != 1 or not is_file(path):
        return None
    try:
        with path.open("rb") as file:
            head = file.read(4096)
            return head + file.read(max(MAX_BYTES + 1 - len(head), 0)) if is_plan_file(head) else None
    except OSError:
        return None  # the loader says what is wrong with it


def _execute(plans: Sequence[Plan], arguments: argparse.Namespace, stopped: StopFlag) -> tuple[JobResult, ...]:
    run_id = uuid.uuid4().hex[:12]
    results: tuple[JobResult, ...] = ()
    for plan in plans:
        state_dir = state_folder(plan.folder, arguments.state_dir, plan.roots)
        note_gone_files(plan, state_dir)
        if not plan.steps:
            results += Execution.finished(plan)
            continue
        refused = _refused_by_gates(plan, arguments.state_dir)
        if refused is not None:
            results += refused
            continue
        results += run_plan(plan, state_dir, run_id, arguments, stopped)
        if stopped():
            break
    return results


def _refused_by_gates(plan: Plan, state_dir: str | None) -> tuple[JobResult, ...] | None:
    """Run the golden checks that must pass before a plan; return the jobs as failed when one does not."""
    if not plan.gates:
        return None
    from ortdeploy.checks.run import PASSED  # noqa: PLC0415  only who has gates
    from ortdeploy.cli.commands.check import run_checks  # noqa: PLC0415

    results = list(run_checks(plan.gates, state_dir, plan.roots))
    for result in results:
        log.info("check.finished", model=result.model, session=result.session, check=result.check, status=result.status)
    bad = next((result for result in results if result.status != PASSED), None)
    if bad is None:
        return None
    reason = f"golden check {bad.check} of model {bad.model} on session {bad.session} {bad.status}: {bad.message}"
    return tuple(
        JobResult(job=step.job, status=Status.FAILED, output=step.output.shown, reason=reason)
        for step in plan.steps
        if isinstance(step, RunJob)
    )
