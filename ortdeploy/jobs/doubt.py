"""Rows of decided parts that may be wrong, because a later comparison of the process that made them disagreed.

They are noted beside the decisions, once: then no process begins to make parts of the plan, and `finish` puts none into
the ledger.
"""

from contextlib import suppress

from ortdeploy.diagnostics import OrtdeployError, RefusedError
from ortdeploy.parts.commit_log import ClosedError, CommitLog
from ortdeploy.parts.receipt import Receipt
from ortdeploy.plan.steps import RunJob
from ortdeploy.reports.proven import Proven, added, check_doubt, doubt_of, in_doubt
from ortdeploy.sessions.evidence import DisagreementError

DOUBT = "doubt.json"
"""The file in a plan's folder that says which rows are in doubt."""


class OwnParts:
    """The parts that one process has made of a plan, and what is proven of them."""

    def __init__(self) -> None:
        self._end = 0
        self._proven: Proven = {}

    def add(self, receipt: Receipt) -> None:
        """Take a part that was decided."""
        self._end = max(self._end, receipt.part.start + receipt.part.rows)
        self._proven = added(self._proven, receipt.statistics.get("proven", {}))

    def doubted(self, error: DisagreementError, decisions: CommitLog, step: RunJob) -> OrtdeployError:
        """Note which rows of these parts a comparison puts in doubt; return an error that says so.

        Raises OrtdeployError, OSError.
        """
        doubt = doubt_of(error, self._proven, self._end)
        if doubt is None:
            return OrtdeployError(str(error))
        with suppress(ClosedError):  # others have made the part as well, and the plan is finished
            decisions.settle(DOUBT, doubt)
        return OrtdeployError(f"{error}. {in_doubt(doubt, step.output.shown)}")


def refuse_doubt(decisions: CommitLog, step: RunJob) -> None:
    """Raise RefusedError if rows of decided parts are in doubt; OrtdeployError, OSError."""
    doubt = decisions.settled(DOUBT)
    if doubt is None:
        return
    try:
        check_doubt(doubt)
    except ValueError as error:
        raise OrtdeployError(f"{decisions.shown(DOUBT)} is damaged ({error}). Restore it from a copy") from error
    raise RefusedError(in_doubt(doubt, step.output.shown))
