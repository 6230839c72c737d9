"""Limits the blocks that are on their way at once: a few are always allowed, more while they are small."""

import threading

LEAST = 2
"""For each session: one block that runs, one that waits for it; and one more that is read or written."""

MOST = 8
"""For each session, of small blocks: what is through waits while a part is committed."""

SMALL_BYTES = 8 * 1024 * 1024


class InFlight:
    """Counts the blocks between the reader and the writer, and their bytes."""

    def __init__(self, sessions: int) -> None:
        """Begin empty."""
        self._least, self._most = LEAST * sessions + 1, MOST * sessions
        self._changed = threading.Condition()
        self._blocks = self._bytes = 0
        self._closed = False

    def serve(self, sessions: int) -> None:
        """Let another number of sessions take blocks from now on."""
        with self._changed:
            self._least, self._most = LEAST * sessions + 1, MOST * sessions
            self._changed.notify()

    def wait(self) -> bool:
        """Wait until there is room for another block; return False if none is wanted."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._has_room())
            return not self._closed

    def _has_room(self) -> bool:
        return self._blocks < self._least or (self._blocks < self._most and self._bytes < SMALL_BYTES)

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
