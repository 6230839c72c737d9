"""One job of one run with all that it needs from outside, shared by the modules that do its work."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.jobs.pause_watch import PauseWatch
from ortdeploy.jobs.pinned_files import Files
from ortdeploy.ledger.records import OutputRecord
from ortdeploy.parts.open_output import OpenOutput
from ortdeploy.parts.settled import kept_types
from ortdeploy.plan.made_by import MadeBy
from ortdeploy.plan.steps import Plan, RunJob
from ortdeploy.process.tracing import JobTrace
from ortdeploy.results.results import Observer
from ortdeploy.sessions.opening import OpenedModel, OpenedSession
from ortdeploy.sessions.row_independence import RowProof
from ortdeploy.streaming.hooks import Hooks, OnRun
from ortdeploy.streaming.stream import Stream

if TYPE_CHECKING:
    from ortdeploy.parts.replaced_rows import PartRewriter
    from ortdeploy.streaming.crashed_runs import CrashedRuns


class JobContext(Struct, frozen=True, kw_only=True):
    """One job of one run with all that it needs from outside."""

    plan: Plan
    step: RunJob
    output: OpenOutput
    made_by: MadeBy
    """The deployment, as the parts that it makes name it."""
    plan_digest: str
    """The digest of what the plan says of the job."""
    opened: OpenedModel
    run_id: str
    observer: Observer
    stop_asked: Callable[[], bool]
    """Returns whether the run is to end early."""
    native_text: Callable[[], str]
    """Returns what native libraries printed since the last call."""
    prove: Callable[[OpenedSession], RowProof | None]
    """Returns the proof for a session that the rows of a batch do not depend on each other."""
    files: Files
    pause: PauseWatch
    """Returns whether the job must pause."""
    row_limit: int | None = None
    """Only this number of rows runs, from the first on."""
    fatal: "CrashedRuns" = ()
    """The runs that ended an earlier process."""
    on_run: OnRun | None = None
    """Called before and after each run, if an earlier process crashed."""
    trace: JobTrace | None = None
    """Takes spans."""

    @property
    def roots(self) -> tuple[str, ...]:
        """The folders below which links may lead: the manifest's, and those that the command line allows."""
        return (self.plan.folder, *self.plan.roots)

    @property
    def only(self) -> range | None:
        """The numbers of the rows to run; None for all."""
        first = self.step.input.first_row
        return None if self.row_limit is None else range(first, first + self.row_limit)

    def stream(self) -> Stream:
        """Return the threads that run the job's rows; none of them has started."""
        hooks = Hooks(
            stop=self.stop,
            prove=self.prove,
            fatal=self.fatal,
            on_run=self.on_run,
            on_batch=None if self.trace is None else self.trace.batch,
        )
        return Stream(self.step, self.opened, hooks)

    def recover(self) -> OutputRecord:
        """Recover the job's output; see `ortdeploy.parts.recovery.recover`."""
        from ortdeploy.parts.recovery import recover  # noqa: PLC0415  only where a run continues

        return recover(self.output, self.step.output, to_keep=kept_types(self.step))

    def replaced_rows(self, part_digits: int) -> "PartRewriter":
        """Return what replaces rows in committed parts, whose numbers have as many digits in their names."""
        from ortdeploy.parts.replaced_rows import PartRewriter  # noqa: PLC0415  only where rows are replaced

        return PartRewriter(self.output, self.step, made_by=self.made_by, roots=self.roots, part_digits=part_digits)

    def stop(self) -> bool:
        """Return whether the job is to end early."""
        return self.stop_asked() or self.pause()

    def for_rewrite(self) -> "JobContext":
        """Return the context of rows that run to be put into committed parts.

        None of its sessions may fail, because such a part is not kept unfinished.
        """
        return replace(self, opened=replace(self.opened, dispensable=False))
