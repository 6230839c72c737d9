"""What a stream calls while rows run."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from ortdeploy.process.tracing import OnBatch
from ortdeploy.sessions.opening import OpenedSession
from ortdeploy.sessions.row_independence import RowProof

if TYPE_CHECKING:
    from ortdeploy.streaming.crashed_runs import CrashedRuns

OnRun = Callable[[Sequence[int]], None]
"""Called with the rows of each run before it begins, by their numbers in the job, and with none when it has ended."""


class Hooks(Struct, frozen=True, kw_only=True):
    """What a stream calls while rows run."""

    stop: Callable[[], bool]
    """Returns whether the job is to end early."""
    prove: Callable[[OpenedSession], RowProof | None]
    """Returns the proof for a session that the rows of a batch do not depend on each other."""
    fatal: "CrashedRuns" = ()
    """The runs that ended an earlier process."""
    on_run: OnRun | None = None
    """Called before and after each run, if an earlier process crashed."""
    on_batch: OnBatch | None = None
    """Called for each batch, if spans are sent."""
