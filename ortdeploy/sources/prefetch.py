"""Decodes files that are a row each on several threads, where one thread would hold up the sessions.

Rows keep their order. Quick ones are decoded by the thread that reads, because handing a row to another thread takes
longer than to decode a small picture. Pillow and libsndfile let other threads work meanwhile.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from ortdeploy.files.memory_budget import limit_budget, release_others, room
from ortdeploy.process.daemon_threads import DaemonThreads, Timed, timed
from ortdeploy.sources.raw_row import RawRow
from ortdeploy.sources.rows import TOO_LARGE, Found, RowError
from ortdeploy.tensors.columns import size_bytes

if TYPE_CHECKING:
    from concurrent.futures import Future

SLOW = 0.002
"""Seconds: decoding a row that takes longer is worth another thread."""

WORTH = 2.0
"""Seconds of quick rows that must be left for other processes: one takes some tenths of a second to start."""

BUSY = 0.5
"""The part of its time that the thread that reads must decode for that; else it waits for the sessions."""

ENOUGH = 1000
"""Rows after which it is looked at how quick they are."""

SMALL = 64 * 1024
"""Bytes of a row for other processes; of larger pictures, most of the time is Pillow's, beside which sessions run."""

SHARE = 1 / 8
"""Of the room for one thing that must be read whole: what rows that are decoded at once may take beyond the first."""


Beside = Callable[[Iterator[RawRow], Callable[[RawRow], Found], float], Generator[tuple[RawRow, Found]]]
"""Yields rows that other processes decode too, as long as they help; it is told how many seconds one takes."""


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
    another thread, or process, decoded a row. The threads are not waited for at the end: one may hang on a file. Of
    the `count` rows, quick ones are decoded `beside` this process too, if they are many.
    """

    def __init__(
        self,
        raw_rows: Iterator[RawRow],
        decode: Callable[[RawRow], Found],
        threads: int,
        memory_limit: int | None,
        decoding: float,
        *,
        spent: Callable[[float], None] = lambda _seconds: None,
        beside: Beside | None = None,
        count: int = 0,
    ) -> None:
        self._raw_rows = self._new_rows = raw_rows
        self._put_back: deque[RawRow] = deque()
        self._decode = decode
        self._threads = threads
        self._memory_limit = memory_limit
        self._decoding = decoding
        self._spent = spent
        self._beside = beside
        self._left = count
        self._pace = 0, 0.0, time.perf_counter()  # rows, the seconds in which they were decoded, and since when
        self._wanted = 1
        self._room_of_one = 0
        self._failure: Exception | None = None
        self._ahead: deque[tuple[RawRow, Future[Timed[Found]]]] = deque()
        self._decoders = DaemonThreads("ortdeploy-decoder")

    def rows(self) -> Generator[tuple[RawRow, Found]]:
        """Yield the rows. Raises what decoding one raises, in its turn."""
        try:
            while True:
                seconds = yield from self._quick_rows()
                if seconds is not None and self._beside is not None:
                    yield from self._beside(self._raw_rows, self._decode_here, seconds)
                    self._beside = None
                    continue
                self._fill()
                if not self._ahead:
                    break
                while self._ahead:
                    raw, future = self._ahead.popleft()
                    self._fill()
                    decoded = future.result()
                    if _lacked_memory(decoded.value):
                        decoded = timed(partial(self._decode_here, raw))  # others have no memory for it
                    self._wanted = self._useful(decoded)
                    self._spent(decoded.cpu)
                    if self._wanted == 1 and decoded.seconds >= SLOW:  # so large that others have no room beside it
                        self._put_ahead_back()
                    yield raw, decoded.value
                    del decoded, future  # which may be large
            if self._failure is not None:
                raise self._failure
        finally:
            self._ahead.clear()
            self._decoders.close()

    def _quick_rows(self) -> Generator[tuple[RawRow, Found], None, float | None]:
        """Decode rows in this thread, up to the first slow one; a small picture takes less than a call or two more.

        End also where other processes would help, and return how many seconds a row takes.
        """
        decode, clock, slow, enough = self._decode_here, time.perf_counter, SLOW, ENOUGH
        rows, busy, since = self._pace
        for raw in self._raw_rows:
            begin = clock()
            found = decode(raw)
            seconds = clock() - begin
            wanted = 1 if seconds < slow else self._useful(Timed(found, seconds))
            rows += 1
            busy += seconds
            is_small = rows == enough and _bytes_of(found) <= SMALL
            yield raw, found
            del found  # it may be large
            if wanted > 1:
                self._wanted, self._pace = wanted, (rows, busy, since)
                return None
            if rows == enough:
                self._left -= rows
                is_busy = busy > BUSY * (clock() - since) and self._left * busy > WORTH * rows
                if self._beside is not None and is_small and is_busy:
                    return busy / rows
                rows, busy, since = 0, 0.0, clock()
        return None

    def _decode_here(self, raw: RawRow) -> Found:
        """Decode a row in this thread; if there is too little memory, once more with nothing beside it."""
        found = self._decode(raw)
        if not _lacked_memory(found):
            return found
        del found
        self._put_ahead_back()
        release_others()
        return self._decode(raw)

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
            limit_budget(size)
            return self._decode(raw)

        return self._decoders.begin(decode, len(self._ahead))

    def _put_ahead_back(self) -> None:
        """Let go of rows that are decoded ahead, once no thread decodes any more of them: they are decoded again."""
        if not self._ahead:
            return
        from concurrent.futures import wait  # noqa: PLC0415  only where memory is short

        wait([future for _, future in self._ahead])
        self._put_back.extendleft(ahead for ahead, _ in reversed(self._ahead))
        self._raw_rows = chain(_taken_from(self._put_back), self._new_rows)
        self._ahead.clear()

    def _useful(self, decoded: Timed[Found]) -> int:
        """Return how many rows like this one are to be decoded at once."""
        if decoded.seconds < SLOW or isinstance(decoded.value[0], RowError):
            return 1 if decoded.seconds < SLOW else self._wanted
        memory = room(self._memory_limit)
        count = rows_at_once(_bytes_of(decoded.value), self._decoding, self._threads, memory)
        self._room_of_one = room_of_one(memory, count)
        return count


def _lacked_memory(found: Found) -> bool:
    error = found[0]
    return isinstance(error, RowError) and (error.code == TOO_LARGE or isinstance(error.__cause__, MemoryError))


def _taken_from(rows: deque[RawRow]) -> Iterator[RawRow]:
    while rows:
        yield rows.popleft()


def _bytes_of(found: Found) -> int:
    row = found[0]
    return 0 if isinstance(row, RowError) else size_bytes({name: [value] for name, value in row.items()})
