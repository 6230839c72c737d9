"""One job of one run with all that it needs from outside, shared by the modules that do its work."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.jobs.held_files import Files
from ortdeploy.jobs.pause_watch import PauseWatch
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.plan.made_by import MadeBy
from ortdeploy.plan.steps import Plan, RunJob
from ortdeploy.process.tracing import JobTrace, OnBatch
from ortdeploy.results.results import Observer
from ortdeploy.sessions.opening import OpenedModel, OpenedSession
from ortdeploy.sessions.row_proof import RowProof
from ortdeploy.streaming.batch_runner import OnRun

if TYPE_CHECKING:
    from ortdeploy.files.object_store import Upload
    from ortdeploy.streaming.fatal_runs import FatalRuns


class JobContext(Struct, frozen=True, kw_only=True):
    """One job of one run. `output` is what the ledger calls the `folder` that it writes into.

    `made_by` is the deployment, as its parts name it; `plan_digest` is that of what the plan says of the job.

    `stop_asked` returns whether the run is to end early, `pause` whether the job must pause. `native_text` returns what
    native libraries printed since the last call. `prove` returns the proof for a session that the rows of a batch do
    not depend on each other. `most_rows`: only this number of rows runs, from the first on. `fatal` are the runs that
    ended an earlier process. `on_run` is called before and after each run, if an earlier process crashed. `trace` takes
    spans.
    """

    plan: Plan
    step: RunJob
    folder: Path
    output: str
    upload: "Upload | None"
    made_by: MadeBy
    plan_digest: str
    opened: OpenedModel
    run_id: str
    ledger: Ledger
    observer: Observer
    stop_asked: Callable[[], bool]
    native_text: Callable[[], str]
    prove: Callable[[OpenedSession], RowProof | None]
    files: Files
    pause: PauseWatch
    most_rows: int | None = None
    fatal: "FatalRuns" = ()
    on_run: OnRun | None = None
    trace: JobTrace | None = None

    @property
    def roots(self) -> tuple[str, ...]:
        """The folders below which links may lead: the manifest's, and those that the command line allows."""
        return (self.plan.folder, *self.plan.roots)

    @property
    def only(self) -> range | None:
        """The numbers of the rows to run; None for all."""
        first = self.step.input.first_row
        return None if self.most_rows is None else range(first, first + self.most_rows)

    @property
    def layout(self) -> str | None:
        """The name of the thread layout that the job has, if the manifest does not fix it."""
        return self.opened.layout

    @property
    def on_batch(self) -> OnBatch | None:
        """The function that is called for each batch; None if nothing is traced."""
        return None if self.trace is None else self.trace.batch

    def stop(self) -> bool:
        """Return whether the job is to end early."""
        return self.stop_asked() or self.pause()

    def within_parts(self) -> "JobContext":
        """Return the context of rows that run to be put into committed parts.

        None of its sessions may fail, because such a part is not kept unfinished.
        """
        return replace(self, opened=replace(self.opened, dispensable=False))

    def send(self, names: Collection[str]) -> None:
        """Upload files over the store's objects of the same names, if the output is on a store."""
        if self.upload is not None:
            self.upload.replace(names)
