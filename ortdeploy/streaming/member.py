"""The sessions of a job and the blocks on their way through them."""

import threading
from collections.abc import Sequence

from msgspec import Struct

from ortdeploy.feeds.prepared import Prepared
from ortdeploy.results.rows import Block
from ortdeploy.sessions.opening import OpenedSession
from ortdeploy.streaming.row_runner import Outcome, RowRunner


class Finished(Struct, frozen=True, kw_only=True):
    """A block that went through all stages, and the seconds that its runs took."""

    block: Block
    outcome: Outcome
    seconds: float


class Promise:
    """A block's result, for which one thread waits. `concurrent.futures` has the like, and takes 4 ms to import."""

    def __init__(self) -> None:
        """Begin without a result, and without a session that works on it."""
        self._result: Finished | None = None
        self._error: BaseException | None = None
        self._is_settled = False
        self._unsettled, self._unclaimed = threading.Lock(), threading.Lock()
        self._unsettled.acquire()

    def claim(self) -> bool:
        """Return True to the first caller, and to no other: a session that begins, or whoever wants no result."""
        return self._unclaimed.acquire(blocking=False)

    def done(self) -> bool:
        """Return whether there is a result, or an error."""
        return self._is_settled

    def set_result(self, result: Finished) -> None:
        """Give the result."""
        self._result = result
        self._settle()

    def set_exception(self, error: BaseException) -> None:
        """Give an error in place of the result."""
        self._error = error
        self._settle()

    def result(self, timeout: float | None = None) -> Finished:
        """Wait for the result. Raises the error in its place, and TimeoutError after as many seconds."""
        if not self._unsettled.acquire(timeout=-1 if timeout is None else timeout):
            raise TimeoutError
        self._unsettled.release()
        if self._result is None:
            raise self._error or AssertionError("settled with neither a result nor an error")
        return self._result

    def _settle(self) -> None:
        self._is_settled = True
        self._unsettled.release()


class Ticket:
    """A block on its way through a session. `read_seconds` of the processor it took to read and prepare it."""

    def __init__(self, prepared: Prepared, read_seconds: float) -> None:
        """Take the block with its tensors; no session has begun with it."""
        self.prepared = prepared
        self.read_seconds = read_seconds
        self.size_bytes = prepared.size_bytes
        self.finished = Promise()
        self._begun = False

    def begin(self) -> bool:
        """Note that a session, perhaps not the first, runs the block; return False if the block is no longer wanted."""
        if not self._begun:
            self._begun = self.finished.claim()
        return self._begun


class Member(Struct):
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
        return () if ticket is None else [ticket.prepared.block.rows[row] for row in self.rows.runs.running]

    @property
    def name(self) -> str:
        """The session's name in the plan, with its number if there are several instances."""
        return self.opened.name
