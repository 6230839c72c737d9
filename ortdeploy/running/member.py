"""The sessions of a job and the blocks on their way through them."""

from collections.abc import Sequence
from concurrent.futures import Future

from ortdeploy.records import mutable_record, record
from ortdeploy.results.rows import Block
from ortdeploy.running.batch_runner import Prepared
from ortdeploy.running.row_runner import Outcome, RowRunner
from ortdeploy.sessions.opening import OpenedSession


@record
class Finished:
    """A block that went through all stages, and the seconds that its runs took."""

    block: Block
    outcome: Outcome
    seconds: float


class Ticket:
    """A block on its way through a session."""

    def __init__(self, prepared: Prepared) -> None:
        """Take the block with its tensors; no session has begun with it."""
        self.prepared = prepared
        self.size_bytes = prepared.size_bytes
        self.finished: Future[Finished] = Future()
        self._begun = False

    def begin(self) -> bool:
        """Note that a session, perhaps not the first, runs the block; return False if the block is no longer wanted."""
        if not self._begun:
            self._begun = self.finished.set_running_or_notify_cancel()
        return self._begun


@mutable_record
class Member:
    """A session of the job with what it has done; `failure` says why it takes no more blocks.

    `cpu_seconds` are those of the thread that calls it, without the session's own threads.
    """

    opened: OpenedSession
    rows: RowRunner
    blocks: int = 0
    done: int = 0
    failure: str | None = None
    current: Ticket | None = None
    cpu_seconds: float = 0.0

    @property
    def running(self) -> Sequence[int]:
        """The numbers in the job of the rows that the session runs, or ran last; empty if it has no block."""
        ticket = self.current
        return () if ticket is None else [ticket.prepared.block.rows[row] for row in self.rows.running]

    @property
    def name(self) -> str:
        """The session's name in the plan, with its number if there are several instances."""
        return self.opened.name
