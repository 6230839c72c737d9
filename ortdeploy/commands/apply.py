"""`ortdeploy apply`: plan a manifest and run the plan, or run a saved one whose facts still hold."""

import argparse
import os
import signal
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

import structlog

from ortdeploy.commands.shared import load_options, native_output_to_stderr, start_logging, use_color, write_diagnostics
from ortdeploy.diagnostics import Diagnostic, OrtdeployError, Span, has_errors
from ortdeploy.executor import Execution
from ortdeploy.exit_codes import EXIT_OK, EXIT_REJECTED
from ortdeploy.job_run import JobResult, Observer, Status
from ortdeploy.ledger import hold_lock, open_ledger
from ortdeploy.manifest.document import stage_diagnostic
from ortdeploy.plan import Plan, job_names, keep_job
from ortdeploy.plan_file import is_plan_file, load_plans
from ortdeploy.views import json, progress, text
from ortdeploy.workflow import Planned, check_job_name, check_saved_plan, plan_manifests, state_folder

log = structlog.get_logger()


def run(arguments: argparse.Namespace) -> int:
    """Plan, show the plan, run it, say how each job ended."""
    with ExitStack() as stack:
        start_logging(arguments, stack)
        observer = _choose_progress(arguments)
        planned = _load_or_plan(arguments)
        rejected = has_errors(planned.diagnostics)
        if arguments.format != "json":
            write_diagnostics(planned.diagnostics, arguments)
        if arguments.format == "text" and not rejected and not arguments.quiet:
            shown = text.render_plan(planned.plans, color=use_color(arguments), verbose=arguments.verbose)
            sys.stdout.write(shown)
            sys.stdout.flush()
        results: tuple[JobResult, ...] = ()
        stopped = _StopFlag()
        if not rejected:
            with stopped.installed(), native_output_to_stderr():
                results = _execute(planned.plans, arguments, observer, stopped)
    if arguments.format == "json":
        sys.stdout.write(json.render_apply(planned.diagnostics, planned.plans, results))
    elif arguments.format != "sarif":
        sys.stdout.write(text.render_results(results, color=use_color(arguments)))
    if any(result.status is Status.INTERRUPTED for result in results):
        return stopped.exit_code
    return EXIT_REJECTED if rejected or any(result.status is Status.FAILED for result in results) else EXIT_OK


def _choose_progress(arguments: argparse.Namespace) -> Observer:
    """Return a bar on a terminal, log lines elsewhere, nothing when quiet."""
    if arguments.quiet:
        return progress.Silent()
    return progress.Bar(sys.stderr) if sys.stderr.isatty() else progress.LogLines()


def _load_or_plan(arguments: argparse.Namespace) -> Planned:
    saved = _saved_plan(arguments.paths)
    if saved is None:
        return plan_manifests(
            arguments.paths, load_options(arguments), state_dir=arguments.state_dir, only_job=arguments.job
        )
    if saved.diagnostics:
        return saved
    plans = saved.plans
    if arguments.job is not None:
        check_job_name(arguments.job, [name for plan in plans for name in job_names(plan)])
        plans = tuple(keep_job(plan, arguments.job) for plan in plans)
    diagnostics: tuple[Diagnostic, ...] = ()
    for plan in plans:
        diagnostics += check_saved_plan(plan, arguments.state_dir)
    return Planned(plans=plans, diagnostics=diagnostics)


def _saved_plan(paths: Sequence[str]) -> Planned | None:
    """Return the plans of a plan file; None when the path is a manifest or a folder."""
    path = Path(paths[0])
    if len(paths) != 1 or not os.path.isfile(path):  # noqa: PTH113  Path.is_file raises for a name that is too long
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


def _execute(
    plans: Sequence[Plan], arguments: argparse.Namespace, observer: Observer, stopped: "_StopFlag"
) -> tuple[JobResult, ...]:
    from ortdeploy.runtime.session import OrtRuntime  # noqa: PLC0415  not before the plan stands

    run_id = uuid.uuid4().hex[:12]
    results: tuple[JobResult, ...] = ()
    for plan in plans:
        state_dir = state_folder(plan.folder, arguments.state_dir)
        with structlog.contextvars.bound_contextvars(run=run_id, deployment=plan.deployment):
            if not plan.steps:
                results += Execution.finished(plan)
                continue
            with hold_lock(state_dir), open_ledger(state_dir) as ledger:
                log.info("run.started", manifest=plan.manifest)
                execution = Execution(
                    plan=plan, run_id=run_id, runtime=OrtRuntime(), ledger=ledger, observer=observer, stop=stopped
                )
                done = execution.run()
                log.info("run.finished", jobs={result.job: str(result.status) for result in done})
                results += done
        if stopped():
            break
    return results


class _StopFlag:
    """Set by the first SIGINT or SIGTERM; a second SIGINT interrupts at once."""

    def __init__(self) -> None:
        self._signal: int | None = None

    def __call__(self) -> bool:
        return self._signal is not None

    @property
    def exit_code(self) -> int:
        """130 for SIGINT, 143 for SIGTERM."""
        return 128 + (self._signal or signal.SIGINT)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Listen to both signals inside the block."""
        before = {number: signal.signal(number, self._set) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, action in before.items():
                signal.signal(number, action)

    def _set(self, number: int, _frame: FrameType | None) -> None:
        if self._signal is not None:
            raise KeyboardInterrupt
        self._signal = number
