"""The sessions of one thread layout as one lane of a job's stream: the blocks that wait for them, and their pace."""

import threading
import time
from collections.abc import Iterator, Sequence
from queue import Empty, SimpleQueue

from ortdeploy.records import record
from ortdeploy.running.member import Member, Ticket


@record
class Mark:
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
        self._lock = threading.Lock()
        self._inside = 0
        self._active_since: float | None = None
        self._active_before = 0.0

    def put(self, ticket: Ticket) -> None:
        """Let a block wait for a session."""
        self._waiting.put(ticket)

    def tickets(self) -> Iterator[Ticket]:
        """Yield the blocks that one session is to run, until the lane is closed."""
        with self._lock:
            self._inside += 1
        try:
            while (ticket := self._waiting.get()) is not None:
                yield ticket
                del ticket  # a block that is through takes no memory while the next one is waited for
        finally:
            with self._lock:
                self._inside -= 1

    @property
    def is_busy(self) -> bool:
        """Whether a session of a closed lane may still run a block."""
        return self._inside > 0

    def taken_back(self) -> Iterator[Ticket]:
        """Yield the blocks that still wait; they do not wait any more."""
        while True:
            try:
                ticket = self._waiting.get_nowait()
            except Empty:
                return
            if ticket is not None:
                yield ticket

    def close(self) -> None:
        """Let the threads of the sessions end."""
        for _ in self.members:
            self._waiting.put(None)

    def ran(self, rows: int) -> None:
        """Count a block that a session has run."""
        with self._lock:
            before, at, cpu = self.mark, time.perf_counter(), time.process_time()
            self.mark = Mark(blocks=before.blocks + 1, rows=before.rows + rows, at=at, cpu=cpu)

    def activate(self, active: bool) -> None:
        """Note that the lane gets blocks from now on, or none."""
        now = time.perf_counter()
        if self._active_since is not None:
            self._active_before += now - self._active_since
        self._active_since = now if active else None

    @property
    def session_seconds(self) -> float:
        """Seconds in which the lane got blocks, times its sessions."""
        now = 0.0 if self._active_since is None else time.perf_counter() - self._active_since
        return (self._active_before + now) * len(self.members)
