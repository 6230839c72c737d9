"""`ortdeploy apply`: plan a manifest and run the plan, or run a saved one whose facts still hold."""

import argparse
import sys
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import structlog

from ortdeploy.checks.run import PASSED
from ortdeploy.cli.children.apply import run_plan
from ortdeploy.cli.commands.check import run_checks
from ortdeploy.cli.commands.shared import load_options, start_logging, use_color, write_diagnostics
from ortdeploy.cli.exit_codes import EXIT_OK, EXIT_REJECTED
from ortdeploy.cli.signals import StopFlag
from ortdeploy.diagnostics import Diagnostic, OrtdeployError, Span, has_errors
from ortdeploy.files.names import is_file
from ortdeploy.manifest.document import stage_diagnostic
from ortdeploy.plan.plan_file import is_plan_file, load_plans
from ortdeploy.plan.selection import job_names, keep_jobs
from ortdeploy.plan.steps import Plan, RunJob
from ortdeploy.planning.workflow import (
    Planned,
    check_job_name,
    check_saved_plan,
    plan_manifests,
    state_folder,
)
from ortdeploy.results.results import JobResult, Status
from ortdeploy.running.executor import Execution
from ortdeploy.views import json, text

log = structlog.get_logger()


def run(arguments: argparse.Namespace) -> int:
    """Plan, show the plan, run it, say how each job ended."""
    with ExitStack() as stack:
        start_logging(arguments, stack)
        planned = _load_or_plan(arguments)
        rejected = has_errors(planned.diagnostics)
        if arguments.format != "json":
            write_diagnostics(planned.diagnostics, arguments)
        if arguments.format == "text" and not rejected and not arguments.quiet:
            shown = text.render_plan(planned.plans, color=use_color(arguments), verbose=arguments.verbose)
            sys.stdout.write(shown)
            sys.stdout.flush()
        results: tuple[JobResult, ...] = ()
        stopped = StopFlag()
        if not rejected:
            with stopped.installed():
                results = _execute(planned.plans, arguments, stopped)
    if arguments.format == "json":
        sys.stdout.write(json.render_apply(planned.diagnostics, planned.plans, results))
    elif arguments.format != "sarif":
        sys.stdout.write(text.render_results(results, color=use_color(arguments)))
    if any(result.status is Status.INTERRUPTED for result in results):
        return stopped.exit_code
    return EXIT_REJECTED if rejected or any(result.status is Status.FAILED for result in results) else EXIT_OK


def _load_or_plan(arguments: argparse.Namespace) -> Planned:
    saved = _saved_plan(arguments.paths) if arguments.command == "apply" else None
    if saved is None:
        return plan_manifests(
            arguments.paths,
            load_options(arguments),
            state_dir=arguments.state_dir,
            only_job=arguments.job,
            new_run=arguments.new_run,
            retry=arguments.command == "retry",
        )
    if saved.diagnostics:
        return saved
    plans = saved.plans
    if arguments.job is not None:
        check_job_name(arguments.job, [name for plan in plans for name in job_names(plan)])
        plans = tuple(keep_jobs(plan, [arguments.job]) for plan in plans)
    diagnostics: tuple[Diagnostic, ...] = ()
    for plan in plans:
        diagnostics += check_saved_plan(plan, arguments.state_dir)
    return Planned(plans=plans, diagnostics=diagnostics)


def _saved_plan(paths: Sequence[str]) -> Planned | None:
    """Return the plans of a plan file; None when the path is a manifest or a folder."""
    path = Path(paths[0])
    if len(paths) != 1 or not is_file(path):
        return None
    try:
        raw = path.read_bytes()
    except OSError:
        return None  # the loader says what is wrong with it
    if not is_plan_file(raw):
        return None
    try:
        return Planned(plans=load_plans(raw.decode("utf-8")), diagnostics=())
    except (OrtdeployError, UnicodeDecodeError) as error:
        span = Span(path=str(path), line=1, column=1)
        diagnostic = stage_diagnostic("unreadable-plan", f"{path} cannot be applied: {error}.", span)
        return Planned(plans=(), diagnostics=(diagnostic,))


def _execute(plans: Sequence[Plan], arguments: argparse.Namespace, stopped: StopFlag) -> tuple[JobResult, ...]:
    run_id = uuid.uuid4().hex[:12]
    results: tuple[JobResult, ...] = ()
    for plan in plans:
        if not plan.steps:
            results += Execution.finished(plan)
            continue
        refused = _refused_by_gates(plan)
        if refused is not None:
            results += refused
            continue
        results += run_plan(
            plan, state_folder(plan.folder, arguments.state_dir, plan.roots), run_id, arguments, stopped
        )
        if stopped():
            break
    return results


def _refused_by_gates(plan: Plan) -> tuple[JobResult, ...] | None:
    """Run the golden checks that must pass before a plan; return the jobs as failed when one does not."""
    results = list(run_checks(plan.gates))
    for result in results:
        log.info("check.finished", model=result.model, session=result.session, check=result.check, status=result.status)
    bad = next((result for result in results if result.status != PASSED), None)
    if bad is None:
        return None
    reason = f"golden check {bad.check} of model {bad.model} on session {bad.session} {bad.status}: {bad.message}"
    return tuple(
        JobResult(job=step.job, status=Status.FAILED, output=step.shown_output, reason=reason)
        for step in plan.steps
        if isinstance(step, RunJob)
    )
