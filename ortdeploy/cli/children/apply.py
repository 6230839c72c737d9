"""Runs plans for `ortdeploy apply`: in this process, or in a child that `Supervisor` watches; `main` is the child."""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ortdeploy.cli.commands.shared import can_move, start_logging, wants_color
from ortdeploy.cli.output.log import log_warning
from ortdeploy.cli.output.streams import private_streams
from ortdeploy.cli.signals import StopFlag
from ortdeploy.diagnostics import LockedError
from ortdeploy.events import bound, log
from ortdeploy.files.names import COMPILED
from ortdeploy.files.tuning_cache import TuningCache
from ortdeploy.jobs.ending import Ending
from ortdeploy.jobs.executor import Execution
from ortdeploy.jobs.job_report import NOT_BEGUN, log_end, recorded_result, unrun
from ortdeploy.jobs.pinned_files import cut_files, held_in, hold_files, may_be_cut
from ortdeploy.jobs.pinned_runtime import PinnedRuntime
from ortdeploy.jobs.row_independence import may_end_its_process
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.opening import copy_of_ledger, open_ledger
from ortdeploy.ledger.output_lock import crash_of_holder, hold_output, hold_outputs, noted_shards, shard_of
from ortdeploy.ledger.records import output_key
from ortdeploy.plan.memory_notes import needs_measuring
from ortdeploy.plan.plan_file import decode, plan_digest
from ortdeploy.plan.selection import run_jobs, written_paths
from ortdeploy.plan.steps import OpenSession, Plan, RunJob
from ortdeploy.process import last_words
from ortdeploy.process.crash_note import crashes_noted_in
from ortdeploy.process.native_output import NativeOutput
from ortdeploy.process.python_warnings import warnings_to
from ortdeploy.providers.catalogue import CPU
from ortdeploy.reports.memory_told import told
from ortdeploy.results.results import JobResult, Observer, Status
from ortdeploy.sessions.generated_models import make_model
from ortdeploy.sessions.opening import OnNativeCall, SkippedSession
from ortdeploy.views import progress

if TYPE_CHECKING:
    from ortdeploy.parts.assigned_parts import AssignedParts
    from ortdeploy.plan.part_table import Shard
    from ortdeploy.process.child import Asked, Say
    from ortdeploy.streaming.crashed_runs import CrashedRuns

_LOGGING = ("quiet", "verbose", "log_file", "log_format", "color")


def choose_progress(arguments: argparse.Namespace) -> Observer:
    """Return the observer of progress: a live line on a terminal, else log lines; with -q, nothing."""
    if arguments.quiet:
        return progress.Silent()
    if not can_move(sys.stderr):
        return progress.LogLines()
    return progress.LiveLine(sys.stderr, color=wants_color(sys.stderr, arguments.color))


def run_plan(
    plan: Plan,
    state_dir: Path,
    run_id: str,
    arguments: argparse.Namespace,
    stopped: StopFlag,
    *,
    row_limit: int | None = None,
    shard: "Shard | None" = None,
) -> tuple[JobResult, ...]:
    """Run a plan in a child if a provider, a proof or a file that is cut might end the process, else in this process.

    So is a plan with an output, or a shard of one, whose last run was ended by a crash of native code.

    With `row_limit`, only that many rows of each job run, and models and other files are used in place instead of from
    the content store. With `shard`, only its parts of each job run, and the ledger is only read.
    """
    crash = _last_crash(plan, state_dir, shard)
    in_child = needs_supervision(plan) or _may_lose_a_file(plan, state_dir, for_a_look=row_limit is not None)
    may_trap = sys.platform != "win32" and may_end_its_process(plan, TuningCache(state_dir))
    if crash is None and not in_child and not may_trap:
        with closing(NativeOutput()) as native, native.taking():
            return tuple(
                execute(
                    plan,
                    state_dir,
                    run_id,
                    observer=choose_progress(arguments),
                    stopped=stopped,
                    native=native,
                    on_native_call=lambda what: last_words.doing(**what),
                    row_limit=row_limit,
                    shard=shard,
                )
            )
    from ortdeploy.application.supervisor import Supervisor  # noqa: PLC0415  few plans need one

    request = _request(state_dir, run_id, arguments, row_limit, shard)
    if not in_child:  # later runs need no child, and a part does not tell who has read the plan
        request["digests"] = {step.job: plan_digest(plan, step.job) for step in run_jobs(plan)}
    supervisor = Supervisor(
        plan=plan,
        module=__name__,
        settings=request,
        close_job=lambda step, reason: _close_job(plan, state_dir, step, _with_cut_files(plan, reason), shard),
        unrun=lambda left: unrun(left, state_dir, NOT_BEGUN),
        stopped=stopped,
        closely=crash is not None,
    )
    stopped.forward = supervisor.forward
    return supervisor.run()


def _request(
    state_dir: Path, run_id: str, arguments: argparse.Namespace, row_limit: int | None, shard: "Shard | None"
) -> dict[str, Any]:
    """Return what a child is told beside its plan, as JSON; `_serve` reads it."""
    return {
        "state_dir": str(state_dir),
        "run_id": run_id,
        "row_limit": row_limit,
        "shard": None if shard is None else [shard.index, shard.count],
        "logging": {name: getattr(arguments, name) for name in _LOGGING},
    }


def execute(
    plan: Plan,
    state_dir: Path,
    run_id: str,
    *,
    observer: Observer,
    stopped: Callable[[], bool],
    native: NativeOutput,
    on_native_call: OnNativeCall = lambda _doing: None,
    skipped: Mapping[str, tuple[SkippedSession, ...]] | None = None,
    row_limit: int | None = None,
    shard: "Shard | AssignedParts | None" = None,
    fatal: "Mapping[str, CrashedRuns] | None" = None,
    on_run: Callable[[str, Sequence[int]], None] | None = None,
    began: Mapping[str, float] | None = None,
    on_proof: Callable[[str, bool], None] | None = None,
    unproven: Mapping[str, str] | None = None,
    digests: Mapping[str, str] | None = None,
    cores: int | None = None,
) -> Iterator[JobResult]:
    """Run a plan in this process; yield how each job ended. With `shard`, the ledger is only read."""
    from ortdeploy.runtime.session import OrtRuntime  # noqa: PLC0415  not before the plan stands

    with (
        bound(run=run_id, deployment=plan.deployment),
        _held(plan, state_dir, shard) as holders,
        crashes_noted_in(holders[0] if holders else None),
        held_in(None, state_dir, Path(plan.folder)) if row_limit is not None else hold_files(plan, state_dir) as files,
        open_ledger(state_dir) if shard is None else copy_of_ledger(state_dir) as ledger,
    ):
        log.info("run.started", manifest=plan.manifest)
        refused: dict[str, str] = {}
        if holders and row_limit is None and on_run is None and any(map(needs_measuring, run_jobs(plan))):
            from ortdeploy.cli.children.memory import with_measured_memory  # noqa: PLC0415  it calls this function

            plan, refused = with_measured_memory(plan, state_dir, stopped)
        execution = Execution(
            plan=plan,
            run_id=run_id,
            runtime=PinnedRuntime(OrtRuntime(cache=state_dir / COMPILED, make_model=make_model), files),
            ledger=ledger,
            observer=observer,
            stop=stopped,
            on_native_call=on_native_call,
            native_text=lambda: files.with_manifest_paths(native.take()),
            skipped=skipped or {},
            tuning_cache=TuningCache(state_dir),
            files=files,
            row_limit=row_limit,
            shard=shard,
            fatal=fatal or {},
            on_run=on_run,
            began=began or {},
            on_proof=on_proof,
            unproven=unproven or {},
            digests=digests or {},
            cores=cores,
            too_large=refused,
        )
        ended: dict[str, str] = {}
        for result in execution.results():
            ended[result.job] = str(result.status)
            last_words.doing()
            yield result
        log.info("run.finished", jobs=ended)


def needs_supervision(plan: Plan) -> bool:
    """Return whether a plan needs a process of its own, on systems where a child can be given pipes.

    It does if it runs anything but ONNX Runtime's own CPU provider; if it writes texts, because the pattern of a
    stranger's tokenizer may crash, or come to no end; if sessions share an arena, which lives as long as its process;
    or if a run has a time limit, because a run may only end with its process.
    """
    providers = {
        provider.name
        for step in plan.steps
        if isinstance(step, OpenSession)
        for candidate in step.candidates
        for provider in candidate.providers
    }
    shares = any(
        isinstance(step, OpenSession) and (step.generates or step.shared_arena is not None) for step in plan.steps
    )
    limited = any(step.errors.run_timeout is not None for step in plan.steps if isinstance(step, RunJob))
    return sys.platform != "win32" and (shares or limited or bool(providers - {CPU}))


def _may_lose_a_file(plan: Plan, state_dir: Path, *, for_a_look: bool) -> bool:
    """Return whether somebody may cut a mapped file during the run; a trial takes only moments."""
    return not for_a_look and sys.platform != "win32" and may_be_cut(plan, state_dir)


def _held(plan: Plan, state_dir: Path, shard: "Shard | AssignedParts | None") -> AbstractContextManager[list[Path]]:
    """Lock the outputs of a plan, unless this process shares them; yield the files for notes of a crash.

    A worker of an engine needs none: its parent sees how it ends.
    """
    if shard is None:
        return hold_outputs(state_dir, _outputs(plan, state_dir))
    from ortdeploy.plan.part_table import Shard  # noqa: PLC0415  only for shards

    if isinstance(shard, Shard):
        return noted_shards(state_dir, _outputs(plan, state_dir, shard))
    return nullcontext([])


def _last_crash(plan: Plan, state_dir: Path, shard: "Shard | None") -> str | None:
    """Return how native code ended the last run of an output, or of a shard of it, and log it; None if it did not."""
    if sys.platform == "win32":
        return None
    for output in _outputs(plan, state_dir, shard):
        crash = crash_of_holder(state_dir, output)
        if crash is not None:
            log.warning("run.watched", output=output, reason=crash)
            return crash
    return None


def _outputs(plan: Plan, state_dir: Path, shard: "Shard | None" = None) -> list[str]:
    """Return the output folders that a plan writes into, as the ledger names them; or the names of a shard of each."""
    outputs = [output_key(Path(plan.folder) / path, state_dir) for path in written_paths(plan)]
    return outputs if shard is None else [shard_of(output, str(shard)) for output in outputs]


def _with_cut_files(plan: Plan, reason: str) -> str:
    """Return why a child ended, with mapped files that were cut meanwhile, as they may be the cause."""
    cut = cut_files(plan)
    return f"{reason} While it was used, {', '.join(cut)} got another size." if cut else reason


def _close_job(plan: Plan, state_dir: Path, step: RunJob, reason: str, shard: "Shard | None") -> JobResult:
    """Record that a crash ended a job; committed parts stay, and the next apply continues after them."""
    if shard is not None:
        result = recorded_result(step, None, Ending(status=Status.FAILED, reason=reason))
    else:
        output = output_key(Path(plan.folder) / step.output.path, state_dir)
        with hold_output(state_dir, output), open_ledger(state_dir) as ledger:
            result = _failed_job(ledger, Path(plan.folder), step, reason)
    with bound(job=step.job, model=step.model):
        log_end(result)
    return result


def _failed_job(ledger: Ledger, folder: Path, step: RunJob, reason: str) -> JobResult:
    key = ledger.key(folder / step.output.path)
    record = ledger.output(key)
    if record is not None and record.status == "running":
        ledger.end(key, Status.FAILED, reason)
    result = recorded_result(step, record, Ending(status=Status.FAILED, reason=reason))
    return replace(result, memory=told(record.statistics)) if record is not None else result


def main(asked: "Asked") -> None:
    """Be the child: run the plan of the request, and report its progress."""
    from ortdeploy.cli.children.endings import told_to_the_parent  # noqa: PLC0415  only in a child

    with told_to_the_parent(asked.say, "error"):
        try:
            _serve(asked.request, asked.say, asked.native_output())
        except LockedError as error:
            asked.say(kind="locked", reason=str(error), output=error.output)


def _serve(request: Mapping[str, Any], say: "Say", native: NativeOutput) -> None:
    from ortdeploy.application.supervisor import result_message  # noqa: PLC0415
    from ortdeploy.plan.part_table import Shard  # noqa: PLC0415  only in a child
    from ortdeploy.streaming.crashed_runs import decode_crashed_runs  # noqa: PLC0415

    stopped = StopFlag()
    skipped = {
        model: tuple(SkippedSession(session=s, reason=r) for s, r in one) for model, one in request["skipped"].items()
    }
    with ExitStack() as stack:
        stack.enter_context(private_streams())
        stack.enter_context(native.taking())
        stack.enter_context(stopped.installed())
        arguments = argparse.Namespace(**request["logging"])
        kept = start_logging(arguments, stack)
        if kept is not None:
            kept.keep_in(Path(request["state_dir"]))
        stack.enter_context(warnings_to(log_warning))
        for result in execute(
            decode(Plan, request["plan"]),
            Path(request["state_dir"]),
            request["run_id"],
            observer=choose_progress(arguments),
            stopped=stopped,
            native=native,
            on_native_call=lambda doing: say(kind="doing", **doing),
            skipped=skipped,
            row_limit=request["row_limit"],
            shard=None if request["shard"] is None else Shard(index=request["shard"][0], count=request["shard"][1]),
            fatal=decode_crashed_runs(request["fatal"]),
            on_run=(lambda job, rows: say(kind="running", job=job, rows=list(rows))) if request["closely"] else None,
            began=request["began"],
            on_proof=lambda job, begins: say(kind="proving", job=job, begins=begins),
            unproven=request["unproven"],
            digests=request.get("digests"),
        ):
            say(**result_message(result))
            if result.stuck:  # a thread is left in native code; the end of this process ends it
                return
