"""Decodes files that are a row each on several threads, where one thread would hold up the sessions.

Rows keep their order. Quick ones are decoded by the thread that reads, because handing a row to another thread takes
longer than to decode a small picture. Pillow and libsndfile let other threads work meanwhile.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from ortdeploy.files.room import room, share_room
from ortdeploy.process.daemon_threads import DaemonThreads, Timed, timed
from ortdeploy.sources.rows import TOO_LARGE, Found, RawRow, RowError
from ortdeploy.tensors.columns import size_bytes

if TYPE_CHECKING:
    from concurrent.futures import Future

SLOW = 0.002
"""Seconds: decoding a row that takes longer is worth another thread."""

DECODING = {"image": 7 / 3, "audio": 2.0, "wav": 2.0, "bytes": 0.0}
"""What decoding a row takes for a while, by format, in units of its size.

Pillow's own picture takes four bytes a pixel, and its bytes three. Samples are read as float32, and sorted by channel.
"""

SHARE = 1 / 8
"""Of the room for one thing that must be read whole: what rows that are decoded at once may take beyond the first."""


def rows_at_once(size: int, decoding: float, threads: int, memory: int) -> int:
    """Return how many rows of some bytes are decoded at once, where decoding takes `decoding` times their size."""
    of_a_row = size * (1 + decoding)
    return max(1, min(threads, 1 + int(memory * SHARE / of_a_row))) if of_a_row else threads


def room_of_one(memory: int, count: int) -> int:
    """Return what each of some rows that are decoded at once may take: twice its share, for estimates are rough."""
    return 2 * int(memory * SHARE / max(count - 1, 1))


class DecodedAhead:
    """Rows with what decoding them gives, in their order; as many are decoded ahead as there are `threads`.

    `decoding` is what decoding a row takes, in units of its size. `spent` is told the processor seconds in which
    another thread decoded a row. The threads are not waited for at the end: one may hang on a file.
    """

    def __init__(
        self,
        raw_rows: Iterator[RawRow],
        decode: Callable[[RawRow], Found],
        threads: int,
        memory_limit: int | None,
        decoding: float,
        spent: Callable[[float], None] = lambda _seconds: None,
    ) -> None:
        """Begin with one thread, that of the caller."""
        self._raw_rows = self._new_rows = raw_rows
        self._put_back: deque[RawRow] = deque()
        self._decode = decode
        self._threads = threads
        self._memory_limit = memory_limit
        self._decoding = decoding
        self._spent = spent
        self._wanted = 1
        self._room_of_one = 0
        self._failure: Exception | None = None
        self._ahead: deque[tuple[RawRow, Future[Timed[Found]]]] = deque()
        self._decoders = DaemonThreads("ortdeploy-decoder")

    def rows(self) -> Generator[tuple[RawRow, Found]]:
        """Yield the rows. Raises what decoding one raises, in its turn."""
        try:
            while True:
                yield from self._quick_rows()
                self._fill()
                if not self._ahead:
                    break
                while self._ahead:
                    raw, future = self._ahead.popleft()
                    self._fill()
                    decoded = future.result()
                    if _lacked_memory(decoded.value):
                        decoded = self._again(raw)
                    self._wanted = self._useful(decoded)
                    self._spent(decoded.cpu)
                    yield raw, decoded.value
                    del decoded, future  # which may be large
            if self._failure is not None:
                raise self._failure
        finally:
            self._ahead.clear()
            self._decoders.close()

    def _quick_rows(self) -> Iterator[tuple[RawRow, Found]]:
        """Decode rows in this thread, up to the first slow one; a small picture takes less than a call or two more."""
        decode, clock, slow = self._decode, time.perf_counter, SLOW
        for raw in self._raw_rows:
            begin = clock()
            found = decode(raw)
            seconds = clock() - begin
            wanted = 1 if seconds < slow else self._useful(Timed(found, seconds))
            yield raw, found
            del found  # it may be large
            if wanted > 1:
                self._wanted = wanted
                return

    def _fill(self) -> None:
        """Let threads decode the next rows, if one is not enough."""
        while 1 < self._wanted > len(self._ahead) and (raw := self._next()) is not None:
            self._ahead.append((raw, self._begin(raw)))

    def _next(self) -> RawRow | None:
        """Return the next row; None at the end, also if it is an error, which waits for the rows before it."""
        try:
            return next(self._raw_rows, None)
        except Exception as error:  # noqa: BLE001  a file on a store cannot be fetched, and it is raised later
            self._failure = error
            return None

    def _begin(self, raw: RawRow) -> "Future[Timed[Found]]":
        """Let a thread decode a row, in the context of this one, which says how often it is tried."""
        size = self._room_of_one

        def decode() -> Found:
            share_room(size)
            return self._decode(raw)

        return self._decoders.begin(decode, len(self._ahead))

    def _again(self, raw: RawRow) -> Timed[Found]:
        """Decode a row that is too large for another thread; if need be with nothing ahead, which takes memory too."""
        decoded = timed(partial(self._decode, raw))
        if not (self._ahead and _lacked_memory(decoded.value)):
            return decoded
        del decoded
        from concurrent.futures import wait  # noqa: PLC0415  only where memory is short

        wait([future for _, future in self._ahead])
        self._put_back.extendleft(ahead for ahead, _ in reversed(self._ahead))
        self._raw_rows = chain(_taken_from(self._put_back), self._new_rows)
        self._ahead.clear()
        return timed(partial(self._decode, raw))

    def _useful(self, decoded: Timed[Found]) -> int:
        """Return how many rows like this one are to be decoded at once."""
        row = decoded.value[0]
        if decoded.seconds < SLOW or isinstance(row, RowError):
            return 1 if decoded.seconds < SLOW else self._wanted
        memory = room(self._memory_limit)
        count = rows_at_once(_bytes_of(row), self._decoding, self._threads, memory)
        self._room_of_one = room_of_one(memory, count)
        return count


def _lacked_memory(found: Found) -> bool:
    error = found[0]
    return isinstance(error, RowError) and (error.code == TOO_LARGE or isinstance(error.__cause__, MemoryError))


def _taken_from(rows: deque[RawRow]) -> Iterator[RawRow]:
    while rows:
        yield rows.popleft()


def _bytes_of(row: Mapping[str, Any]) -> int:
    return size_bytes({name: [value] for name, value in row.items()})
