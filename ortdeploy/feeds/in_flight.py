"""Limits the blocks that are on their way at once: by their bytes, beyond what keeps every session busy."""

import threading

ALWAYS = 2
"""Beside a block for each session that runs it: one that waits, and one that is read or written."""

LEAST = 2
"""For each session, unless blocks are large: one that runs, one that waits for it; and one more in all."""

LARGE_BYTES = 64 * 1024 * 1024
"""Bytes of blocks from which on no more than one waits for all sessions together."""

MOST = 8
"""For each session, of small blocks: what is through waits while a part is committed."""

BLOCK_BYTES = 2 * 1024 * 1024
"""Bytes that a block's rows and results may always take, and a single batch if it takes more."""

SMALL_BYTES = 8 * 1024 * 1024
"""Bytes of small blocks with their results."""


def on_their_way(sessions: int, batch: int, row: int) -> int:
    """Return how many rows are on their way at most, in blocks of a batch; `row` is what one takes, in bytes."""
    in_least = min((LEAST * sessions + 1) * batch, LARGE_BYTES // row + batch)
    return max((sessions + ALWAYS) * batch, in_least, SMALL_BYTES // row)


def block_bytes(sessions: int) -> int:
    """Return what a block may take: more for one session, for which fewer blocks are on their way.

    Handing a block on costs about a millisecond of Python on each of three threads, and threads of a pool spin.
    """
    return max(BLOCK_BYTES, SMALL_BYTES // (LEAST * sessions + 1))


class InFlight:
    """Counts the blocks between the reader and the writer, and their bytes.

    The results of each are taken to be as large as those of the last one that ran.
    """

    def __init__(self, sessions: int) -> None:
        self._changed = threading.Condition()
        self._blocks = self._bytes = 0
        self._results: int | None = None
        self._closed = False
        self._sessions = sessions
        self._always, self._least, self._most = sessions + ALWAYS, LEAST * sessions + 1, MOST * sessions

    def lacks_blocks(self) -> bool:
        """Return whether there are fewer blocks than sessions."""
        return self._blocks < self._sessions

    def wait(self) -> bool:
        """Wait until there is room for another block; return False if none is wanted."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._has_room())
            return not self._closed

    def _has_room(self) -> bool:
        if self._blocks < self._always:
            return True
        taken = self._bytes + self._blocks * (self._results or 0)
        if self._blocks < self._least:
            return taken < LARGE_BYTES
        return self._results is not None and self._blocks < self._most and taken < SMALL_BYTES

    def wait_for_none(self) -> None:
        """Wait until no block is on its way, or none is wanted."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._blocks)

    def learn(self, result_bytes: int) -> None:
        """Note how large the results of a block are; until then, no more than a few blocks are allowed."""
        with self._changed:
            self._results = result_bytes
            self._changed.notify()

    def acquire(self, size_bytes: int) -> None:
        """Count a block in."""
        with self._changed:
            self._blocks += 1
            self._bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Count a block out."""
        with self._changed:
            self._blocks -= 1
            self._bytes -= size_bytes
            self._changed.notify()

    def close(self) -> None:
        """Refuse further blocks."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
