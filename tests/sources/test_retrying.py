"""A source that cannot be read for a moment yields the same blocks as one that always can."""

import errno
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from support.logs import capture_logs

from ortdeploy import retries
from ortdeploy.results.rows import Block
from ortdeploy.retries import limited
from ortdeploy.sources.protocol import Source, pieces_of
from ortdeploy.sources.retrying import patiently


@pytest.fixture(autouse=True)
def _without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "_wait", lambda _seconds, _stop: None)


class Share:
    """Twenty rows on a share that goes away at the calls with some numbers: for opening, and for each block."""

    def __init__(self, away: Sequence[int]) -> None:
        self.away = away
        self.calls = 0
        self.opened = self.closed = 0

    def call(self) -> None:
        self.calls += 1
        if self.calls in self.away:
            raise OSError(errno.ESTALE, "stale file handle")

    @contextmanager
    def open(self, only: Sequence[int] | None) -> Iterator[Source]:
        self.call()
        self.opened += 1
        yield Rows(self, only)
        self.closed += 1


class Rows:
    """The rows of a share."""

    def __init__(self, share: Share, only: Sequence[int] | None) -> None:
        self.share, self.only = share, only

    def blocks(self, start: int, sizes: Iterable[int]) -> Iterator[Block]:
        for first, count in pieces_of(range(start, 20) if self.only is None else self.only, sizes):
            self.share.call()
            yield Block(start=first, count=count, rows=range(first, first + count), columns={}, failed=[])


def read(share: Share, only: Sequence[int] | None) -> list[tuple[int, int]]:
    sizes = iter([4, 1, 5, 3, 7, 2, 9, 9])
    with limited(2, lambda: False), patiently(share.open, only, "reading") as source:
        return [(block.start, block.count) for block in source.blocks(0 if only is None else only[0], sizes)]


@pytest.mark.parametrize("only", [None, [1, 2, 3, 7, 8, 15]], ids=["all", "some"])
@pytest.mark.parametrize("away", [[1], [2], [3, 4], [4], [3, 6]], ids=str)
def test_blocks_are_those_of_a_share_that_stays(only: Sequence[int] | None, away: Sequence[int]) -> None:
    share = Share(away)
    with capture_logs() as logs:
        assert read(share, only) == read(Share([]), only)
    assert share.opened == share.closed
    assert len([one for one in logs if one["event"] == "attempt.failed"]) == len(away)


def test_what_stays_away_is_raised() -> None:
    share = Share(range(3, 100))
    with pytest.raises(OSError, match="stale"):
        read(share, None)
    assert share.calls == 5, "opened, one block, then three attempts; after the first, opening fails"
