"""Runs plans for `ortdeploy apply`: in this process, or in a child that `Supervisor` watches; `main` is the child."""

import argparse
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import structlog

from ortdeploy.cli.commands.shared import start_logging
from ortdeploy.cli.faults import fault_of_the_machine
from ortdeploy.cli.signals import StopFlag
from ortdeploy.cli.streams import private_streams
from ortdeploy.diagnostics import LockedError, OrtdeployError
from ortdeploy.files.remembered import TuningCache
from ortdeploy.ledger.ledger import Ledger, open_ledger, output_key
from ortdeploy.ledger.output_lock import hold_output, hold_outputs
from ortdeploy.plan.plan_file import decode_plan
from ortdeploy.plan.steps import Plan, RunJob
from ortdeploy.process.child import Asked, Say
from ortdeploy.process.native_output import NativeOutput
from ortdeploy.process.python_warnings import warnings_to
from ortdeploy.results.results import JobResult, Observer, Status
from ortdeploy.running.ending import Ending
from ortdeploy.running.executor import Execution
from ortdeploy.running.held_files import cut_files, held_in, hold_files, may_be_cut
from ortdeploy.running.held_runtime import HeldRuntime
from ortdeploy.running.job_report import recorded_result
from ortdeploy.running.supervisor import Supervisor, needs_supervision, result_message
from ortdeploy.sessions.opening import OnNativeCall, SkippedSession
from ortdeploy.views import progress

log = structlog.get_logger()
_LOGGING = ("quiet", "verbose", "log_file", "log_format", "color")


def choose_progress(*, quiet: bool) -> Observer:
    """Return a bar on a terminal, log lines elsewhere, nothing when quiet."""
    if quiet:
        return progress.Silent()
    return progress.Bar(sys.stderr) if sys.stderr.isatty() else progress.LogLines()


def run_plan(
    plan: Plan,
    state_dir: Path,
    run_id: str,
    arguments: argparse.Namespace,
    stopped: StopFlag,
    *,
    most_rows: int | None = None,
) -> tuple[JobResult, ...]:
    """Run a plan: in a child where a provider, or a file that is cut, might take the process with it, else here.

    `most_rows`: only so many rows of each job are run, with models and other files where they lie: none is kept.
    """
    if not (needs_supervision(plan) or _may_lose_a_file(plan, state_dir, for_a_look=most_rows is not None)):
        with closing(NativeOutput()) as native, native.taking():
            observer = choose_progress(quiet=arguments.quiet)
            return tuple(
                _execute(
                    plan, state_dir, run_id, observer=observer, stopped=stopped, native=native, most_rows=most_rows
                )
            )
    supervisor = Supervisor(
        plan=plan,
        module=__name__,
        settings={
            "state_dir": str(state_dir),
            "run_id": run_id,
            "most_rows": most_rows,
            "logging": {name: getattr(arguments, name) for name in _LOGGING},
        },
        close_job=lambda step, reason: _close_job(plan, state_dir, step, _with_cut_files(plan, reason)),
        stopped=stopped,
    )
    stopped.forward = supervisor.forward
    return supervisor.run()


def _execute(
    plan: Plan,
    state_dir: Path,
    run_id: str,
    *,
    observer: Observer,
    stopped: Callable[[], bool],
    native: NativeOutput,
    on_native_call: OnNativeCall = lambda _doing: None,
    skipped: Mapping[str, tuple[SkippedSession, ...]] | None = None,
    most_rows: int | None = None,
) -> Iterator[JobResult]:
    from ortdeploy.runtime.session import OrtRuntime  # noqa: PLC0415  not before the plan stands
    from ortdeploy.sessions.made_models import make_model  # noqa: PLC0415  not before the plan stands

    with (
        structlog.contextvars.bound_contextvars(run=run_id, deployment=plan.deployment),
        hold_outputs(state_dir, _outputs(plan, state_dir)),
        held_in(None, state_dir, Path(plan.folder)) if most_rows is not None else hold_files(plan, state_dir) as files,
        open_ledger(state_dir) as ledger,
    ):
        log.info("run.started", manifest=plan.manifest)
        execution = Execution(
            plan=plan,
            run_id=run_id,
            runtime=HeldRuntime(OrtRuntime(cache=state_dir / "cache", make_model=make_model), files),
            ledger=ledger,
            observer=observer,
            stop=stopped,
            on_native_call=on_native_call,
            native_text=lambda: files.in_own_words(native.take()),
            skipped=skipped or {},
            tuning_cache=TuningCache(state_dir),
            files=files,
            most_rows=most_rows,
        )
        ended: dict[str, str] = {}
        for result in execution.results():
            ended[result.job] = str(result.status)
            yield result
        log.info("run.finished", jobs=ended)


def _may_lose_a_file(plan: Plan, state_dir: Path, *, for_a_look: bool) -> bool:
    """Tell whether a file that is mapped may be cut meanwhile; a look takes moments only."""
    return not for_a_look and sys.platform != "win32" and may_be_cut(plan, state_dir)


def _outputs(plan: Plan, state_dir: Path) -> list[str]:
    """Return the outputs that a plan's jobs write, as the ledger names them."""
    return [
        output_key(Path(plan.folder) / step.output.path, state_dir) for step in plan.steps if isinstance(step, RunJob)
    ]


def _with_cut_files(plan: Plan, reason: str) -> str:
    """Return why a child is gone, with the files that it may have had mapped while they were cut."""
    cut = cut_files(plan)
    return f"{reason} While it was used, {', '.join(cut)} got another size." if cut else reason


def _close_job(plan: Plan, state_dir: Path, step: RunJob, reason: str) -> JobResult:
    """Write down that a crash ended a job; what is committed stays, and the next apply goes on from there."""
    log.error("job.failed", job=step.job, model=step.model, reason=reason)
    output = output_key(Path(plan.folder) / step.output.path, state_dir)
    with hold_output(state_dir, output), open_ledger(state_dir) as ledger:
        return _failed_job(ledger, Path(plan.folder), step, reason)


def _failed_job(ledger: Ledger, folder: Path, step: RunJob, reason: str) -> JobResult:
    key = ledger.key(folder / step.output.path)
    record = ledger.output(key)
    if record is not None and record.status == "running":
        ledger.end(key, Status.FAILED, reason)
    return recorded_result(step, record, Ending(status=Status.FAILED, reason=reason))


def main(asked: Asked) -> None:
    """Be the child: run the plan that is asked for, and say how it goes."""
    try:
        _serve(asked.request, asked.say, asked.native_output())
    except LockedError as error:
        asked.say(kind="locked", reason=str(error))
    except OrtdeployError as error:
        asked.say(kind="error", reason=str(error))
    except KeyboardInterrupt:
        return
    except Exception as error:  # noqa: BLE001  the parent reports it as the bug that it is
        reason = fault_of_the_machine(error)
        if reason is None:
            asked.say(kind="bug", reason="".join(traceback.format_exception(error)))
        else:
            asked.say(kind="error", reason=reason)


def _serve(request: Mapping[str, Any], say: Say, native: NativeOutput) -> None:
    from ortdeploy.cli.log import log_warning  # noqa: PLC0415  as in the other commands

    stopped = StopFlag()
    skipped = {
        model: tuple(SkippedSession(session=s, reason=r) for s, r in one) for model, one in request["skipped"].items()
    }
    with ExitStack() as stack:
        stack.enter_context(private_streams())
        stack.enter_context(native.taking())
        stack.enter_context(stopped.installed())
        arguments = argparse.Namespace(**request["logging"])
        start_logging(arguments, stack)
        stack.enter_context(warnings_to(log_warning))
        for result in _execute(
            decode_plan(request["plan"]),
            Path(request["state_dir"]),
            request["run_id"],
            observer=choose_progress(quiet=arguments.quiet),
            stopped=stopped,
            native=native,
            on_native_call=lambda doing: say(kind="doing", **doing),
            skipped=skipped,
            most_rows=request["most_rows"],
        ):
            say(**result_message(result))
