"""The report of a job while it runs and when it ends, its result, and the last line of its log."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.events import log
from ortdeploy.jobs.ending import Ending
from ortdeploy.jobs.job_context import JobContext
from ortdeploy.jobs.job_statistics import JobStatistics
from ortdeploy.jobs.ran_on import ran_on
from ortdeploy.ledger.opening import read_outputs
from ortdeploy.ledger.records import OutputRecord, output_key
from ortdeploy.plan.selection import run_jobs
from ortdeploy.plan.steps import Plan, RunJob
from ortdeploy.process.machine_metrics import Gauges, nvidia_devices
from ortdeploy.process.memory import memory_in_full, memory_now
from ortdeploy.providers.catalogue import find_provider
from ortdeploy.reports.report import committed, report_written, write_report
from ortdeploy.results.results import JobResult, Status
from ortdeploy.streaming.member import Member


class JobReport:
    """Reports on one job: its sessions (`members`) and its measurements (`statistics`)."""

    def __init__(self, context: JobContext, members: Sequence[Member], statistics: JobStatistics) -> None:
        """Take the sessions and statistics with which the job begins; both may be replaced later."""
        self._context = context
        self._memory_by_stage = dict(context.opened.memory)
        self.members = members
        self.statistics = statistics
        self.done_before = 0
        """The rows that were through when this run began."""
        self.gauges = Gauges(nvidia_devices() if _is_on_nvidia(members) else None)

    def note_first_rows(self) -> None:
        """Note the memory of the process after the first rows."""
        if "first_rows" not in self._memory_by_stage:
            self._memory_by_stage["first_rows"] = memory_now()

    def write(
        self, ending: Ending | None = None, ended: str | None = None, statistics: Mapping[str, Any] | None = None
    ) -> None:
        """Write the report of a job that runs, or that ended with `ending` and `statistics`.

        Raises OSError, OrtdeployError.
        """
        context = self._context
        record = context.output.record()
        if record is not None and ending is not None:
            record = replace(record, status=ending.status, reason=ending.reason, ended=ended)
        if record is not None and statistics is not None:
            record = replace(record, statistics=statistics)
        if record is not None and context.output.folder.is_dir():
            write_report(
                context.output.folder,
                committed(context.output.ledger, record),
                context.plan,
                context.step,
                digest=context.plan_digest,
                ran=self.ran(),
                seconds=self.statistics.seconds,
            )
            if context.output.upload is not None:
                context.output.upload.send()
            report_written(context.output.folder)

    def ran(self) -> dict[str, Any]:
        """Return what the report says of sessions and memory, as JSON has it."""
        by_stage = {**self._memory_by_stage, "last_rows": memory_in_full()}
        ran = ran_on(self._context.plan, self._context.step, self.members, self._context.opened, by_stage)
        return {**ran, "machine": self.gauges.plain()}

    def result(self, ending: Ending, pending: int = 0) -> JobResult:
        """Return how the job ended, with the ledger's counts; `pending` failed rows are not in the ledger."""
        try:
            record = self._context.output.record()
        except OrtdeployError:
            record = None
        result = recorded_result(self._context.step, record, ending)
        return replace(
            result,
            failed=result.failed + pending,
            ran=max(record.rows + result.kept - self.done_before, 0) if record is not None and self.done_before else 0,
            seconds=self.statistics.seconds,
            dropped=tuple(member.name for member in self.members if member.failure is not None),
        )


def _is_on_nvidia(members: Sequence[Member]) -> bool:
    """Return whether a session keeps tensors in the memory of an NVIDIA device."""
    names = {one.name for member in members for one in member.opened.candidate.providers}
    return any(provider is not None and provider.memory == "NVIDIA GPU" for provider in map(find_provider, names))


def recorded_result(step: RunJob, record: OutputRecord | None, ending: Ending) -> JobResult:
    """Return how a job ended, with the counts of its output's record."""
    begun = record.begun if record else None
    return JobResult(
        job=step.job,
        status=ending.status,
        output=step.output.shown,
        committed=record.committed if record else 0,
        failed=record.forgotten.failed + record.failed if record else 0,
        skipped=record.skipped if record else 0,
        kept=begun.part.rows if begun else 0,
        reason=ending.reason,
        provider_failed=ending.provider_failed,
        stuck=ending.stuck,
        overtaken=ending.overtaken,
    )


NOT_BEGUN = Ending(status=Status.INTERRUPTED, reason="a signal came before it began")


def unrun(plan: Plan, state_dir: Path, ending: Ending) -> tuple[JobResult, ...]:
    """Return how the jobs of a plan end that do not begin, with the counts of their earlier runs."""
    known: dict[str, OutputRecord] = {}
    with suppress(OrtdeployError):
        known = {one.output: one for one in read_outputs(state_dir)}
    steps = run_jobs(plan)
    records = (known.get(output_key(Path(plan.folder) / step.output.path, state_dir)) for step in steps)
    return tuple(
        recorded_result(step, None if record is None or record.run == step.output.replaces else record, ending)
        for step, record in zip(steps, records, strict=True)
    )


_EVENTS = {Status.FAILED: "job.failed", Status.INTERRUPTED: "job.interrupted", Status.PAUSED: "job.paused"}


def log_end(result: JobResult) -> None:
    """Say in the log how a job ended."""
    event = _EVENTS.get(result.status, "job.finished")
    level = log.error if result.status in {Status.FAILED, Status.INTERRUPTED} else log.info
    if result.stuck:  # a new process continues, if there can be one
        event, level = "job.stuck", log.warning
    level(
        event,
        committed=result.committed,
        failed=result.failed,
        skipped=result.skipped,
        kept=result.kept,
        seconds=round(result.seconds, 3),
        reason=result.reason,
    )
