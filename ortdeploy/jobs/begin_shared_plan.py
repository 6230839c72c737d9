"""Begins a plan on an output where a run on one machine may begin at the same moment: one of the two stops.

Such a run notes itself in the ledger, and then looks for plans that have begun. A plan begins, and then looks for such
a run; only then do its processes make parts. So whichever of the two begins last finds the other one.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec import Struct

from ortdeploy.diagnostics import OrtdeployError, RefusedError
from ortdeploy.files.names import MARKER
from ortdeploy.jobs.doubt import refuse_doubt
from ortdeploy.jobs.reconcile_inputs import conclude, plan_again
from ortdeploy.jobs.shared_plan import (
    check_fits,
    first_number,
    is_accounted_for,
    is_planned,
    standing_record,
)
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.opening import read_ledger
from ortdeploy.ledger.output_lock import is_live
from ortdeploy.ledger.records import OutputRecord, output_key
from ortdeploy.parts.commit_log import CommitLog, WithdrawnError
from ortdeploy.plan.part_table import part_table
from ortdeploy.plan.steps import Plan, RunJob


class Beginning(Struct, frozen=True, kw_only=True):
    """A plan that begins on the output of one of its jobs. With `is_holder`, this process has the output's lock."""

    plan: Plan
    step: RunJob
    state_dir: Path
    decisions: CommitLog
    is_holder: bool = False

    def run(self, settle: Callable[[Callable[[], None], int], None]) -> None:
        """Begin the plan, unless a run is at work on its output, or has been since the plan was made.

        `settle` notes the first process of the plan, if there is none, and calls what it gets before it does; it also
        gets how many parts of a run on one machine the ledger here knows.
        Raises ClosedError, RefusedError, OrtdeployError, OSError.
        """
        try:
            self._begin(settle)
        except WithdrawnError:  # by a process that could not bring that to its end
            self._begin(settle)

    def _begin(self, settle: Callable[[Callable[[], None], int], None]) -> None:
        with read_ledger(self.state_dir) as ledger:
            record = None if ledger is None else ledger.output(self._output)
        self.decisions.begin(known=record is not None, look=self._look)
        settle(partial(self._look, has_begun=True), self._made_before(record))
        refuse_doubt(self.decisions, self.step)

    def _made_before(self, record: OutputRecord | None) -> int:
        """Return how many parts of the plan are in the ledger; 0 if the user has taken them away."""
        made = [] if record is None else [one for one in record.parts if is_planned(self.decisions.table, one.number)]
        file = next((one.file for one in made if one.file is not None), None)
        is_gone = file is not None and not self.step.output.removable and not self.decisions.output.exists(str(file))
        return 0 if is_gone else len(made)

    @property
    def _output(self) -> str:
        return output_key(self._folder, self.state_dir)

    @property
    def _folder(self) -> Path:
        return Path(self.plan.folder) / self.step.output.path

    def _look(self, *, has_begun: bool = False) -> None:
        """Raise OrtdeployError if a run is at work, RefusedError if one has been since the plan was made."""
        if self.step.output.upload is not None:
            from ortdeploy.files.object_store import Upload  # noqa: PLC0415  only for a store

            Upload(self.step.output.upload, self._folder).check_owner()
        is_held = not self.is_holder and is_live(self.state_dir, self._output)
        with read_ledger(self.state_dir) as ledger:  # after that: a run that has ended has noted everything
            record = None if ledger is None else ledger.output(self._output)
            if is_held and record is not None and record.status == "running":  # else it has yet to look for plans
                raise OrtdeployError(
                    f"another run is at work on {self.step.output.shown}, and no shard of this plan has begun. Wait "
                    "for its end; then make the plan again, for what is left to do"
                )
            if ledger is not None and record is not None:
                self._check_fits(ledger, record)
            elif has_begun and self.decisions.output.exists(MARKER):
                raise RefusedError(
                    f"a run on one machine has begun in {self.step.output.shown} since this plan was made, and the "
                    f"ledger that its {MARKER} names is not seen here. Make the plan again where that ledger is "
                    "(--state-dir)"
                )

    def _check_fits(self, ledger: Ledger, record: OutputRecord) -> None:
        table = part_table(self.step, first_number(record, self.step))
        try:
            if table != self.decisions.table:
                raise plan_again(self.step)
            standing = standing_record(record, self.step, table, self.decisions)
            if standing is not None and not is_accounted_for(ledger, standing, self.step, table):
                check_fits(standing, self.step)
                conclude(self.step, self.plan.folder, ledger, standing)
        except OrtdeployError as error:
            raise RefusedError(str(error)) from error
