"""The sessions of one thread layout as one lane of a job's stream: the blocks that wait for them, and their pace."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

from msgspec import Struct

from ortdeploy.running.member import Member, Ticket

HAND_OVER = 0.5
"""Seconds after a lane has taken over in which its sessions wait until those of the lane before are through.

If both ran at once, threads of a pool would spin while others of their run wait for a core. That has cost 20 ms of all
cores at each change.
"""


class Mark(Struct, frozen=True, kw_only=True):
    """How many blocks and rows the members of a lane have run, and when the last of them was through.

    `cpu` are the processor seconds that the whole process had used then.
    """

    blocks: int = 0
    rows: int = 0
    at: float = 0.0
    cpu: float = 0.0


class Lane:
    """Sessions that take blocks together. `mark` is what they have done so far."""

    def __init__(self, members: Sequence[Member]) -> None:
        """Take the sessions, none of which runs yet."""
        self.members = tuple(members)
        self.mark = Mark()
        self._waiting: SimpleQueue[Ticket | None] = SimpleQueue()
        self._changed = threading.Condition(threading.Lock())
        self._inside = self._running = 0
        self._before: Lane | None = None
        self._wait_until = 0.0
        self._active_since: float | None = None
        self._active_before = 0.0

    def put(self, ticket: Ticket) -> None:
        """Let a block wait for a session."""
        self._waiting.put(ticket)

    def tickets(self) -> Iterator[Ticket]:
        """Yield the blocks that one session is to run, until the lane is closed."""
        with self._changed:
            self._inside += 1
        try:
            while (ticket := self._waiting.get()) is not None:
                if self._before is not None:
                    self._before.wait_until_idle(self._wait_until)
                self._runs(1)
                try:
                    yield ticket
                finally:
                    self._runs(-1)
                del ticket  # a block that is through takes no memory while the next one is waited for
        finally:
            with self._changed:
                self._inside -= 1

    def _runs(self, more: int) -> None:
        with self._changed:
            self._running += more
            self._changed.notify_all()

    def wait_until_idle(self, until: float) -> None:
        """Wait until no session of the lane runs a block, or the lane gets blocks again; not long, for one may hang."""
        if self._running and (left := until - time.perf_counter()) > 0:
            with self._changed:
                self._changed.wait_for(lambda: not self._running or self._active_since is not None, left)

    @property
    def is_busy(self) -> bool:
        """Whether a session of a closed lane may still run a block."""
        return self._inside > 0

    def taken_back(self) -> Iterator[Ticket]:
        """Yield the blocks that still wait; they do not wait any more. A lane that is closed stays so."""
        ends = 0
        with suppress(Empty):
            while True:
                ticket = self._waiting.get_nowait()
                if ticket is None:
                    ends += 1
                else:
                    yield ticket
        for _ in range(ends):
            self._waiting.put(None)

    def close(self) -> None:
        """Let the threads of the sessions end."""
        for _ in self.members:
            self._waiting.put(None)

    def ran(self, rows: int) -> None:
        """Count a block that a session has run."""
        with self._changed:
            before, at, cpu = self.mark, time.perf_counter(), time.process_time()
            self.mark = Mark(blocks=before.blocks + 1, rows=before.rows + rows, at=at, cpu=cpu)

    def begin(self) -> None:
        """Note that the lane gets blocks from now on."""
        with self._changed:
            self._active_since = time.perf_counter()
            self._changed.notify_all()

    def take_over(self, before: "Lane") -> None:
        """Get the blocks from now on in place of another lane, and those that wait there."""
        if before is self:
            return
        before.end()
        self._before, self._wait_until = before, time.perf_counter() + HAND_OVER
        self.begin()
        for ticket in before.taken_back():
            self.put(ticket)

    def end(self) -> None:
        """Note that the lane gets no blocks from now on."""
        self._active_before, self._active_since = self._active_seconds, None

    @property
    def _active_seconds(self) -> float:
        since = self._active_since
        return self._active_before + (0.0 if since is None else time.perf_counter() - since)

    @property
    def session_seconds(self) -> float:
        """Seconds in which the lane got blocks, times its sessions."""
        return self._active_seconds * len(self.members)
