"""A source that begins again where it could not read, if the reason may pass: a network file system, a lack of memory.

It opens the files anew, because a handle may be stale, and asks for blocks of the same sizes. So the blocks are those
that it would have yielded without the failure.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

from ortdeploy.results.rows import Block
from ortdeploy.retries import persist
from ortdeploy.sources.protocol import Source

Open = Callable[[Sequence[int] | None], AbstractContextManager[Source]]
"""Opens the files for all of their rows (None), or for those with some numbers."""


@contextmanager
def patiently(open_source: Open, only: Sequence[int] | None, what: str) -> Iterator[Source]:
    """Open a source; `what` is what log lines call it. Raises what opening raises, StoppedError."""
    source = PatientSource(open_source, only, what)
    with source.opened:
        yield source


class PatientSource:
    """Blocks of a source that is opened again if it cannot be read."""

    def __init__(self, open_source: Open, only: Sequence[int] | None, what: str) -> None:
        """Open the source for the first time."""
        self._open_source = open_source
        self._only = only
        self._what = what
        self.opened = ExitStack()
        self._source = persist(lambda: self._open(only), what)

    def blocks(self, start: int, sizes: Iterable[int]) -> Iterator[Block]:
        """Yield the source's blocks."""
        asked = _Asked(sizes)
        row, blocks = start, self._source.blocks(start, asked.again())
        failed = False

        def read() -> Block | None:
            nonlocal blocks, failed
            try:
                if failed:
                    blocks = self._anew(row).blocks(row, asked.again())
                failed = False
                return next(blocks, None)
            except Exception:
                failed = True
                raise

        while (block := persist(read, self._what)) is not None:
            asked.settle()
            row = block.start + block.count
            yield block
            del block  # whoever has run it lets go of it while the next one is read

    def _anew(self, row: int) -> Source:
        """Open the source again, for rows from this one on."""
        from bisect import bisect_left  # noqa: PLC0415  only where a source has failed

        self.opened.close()
        return self._open(None if self._only is None else self._only[bisect_left(self._only, row) :])

    def _open(self, only: Sequence[int] | None) -> Source:
        return self.opened.enter_context(self._open_source(only))


class _Asked:
    """Sizes of blocks, of which those are asked for again whose blocks could not be read."""

    def __init__(self, sizes: Iterable[int]) -> None:
        self._new = iter(sizes)
        self._open: deque[int] = deque()

    def again(self) -> Iterator[int]:
        """Yield the sizes of the blocks from the first unread one on."""
        yield from tuple(self._open)
        for size in self._new:
            self._open.append(size)
            yield size

    def settle(self) -> None:
        """Note that the first unread block was read."""
        self._open.popleft()
