"""Tries thread layouts on a job's own rows: some blocks run in one, the next in another, and the best goes on.

Results are kept, so trying costs only what a slower layout costs for some tenths of a second. Nothing is tried before
the first rows are through, nor in a job that would be over before. A layout whose results differ in a bit is not used:
interruptions, and how busy a machine is, change no byte of any part. Layouts are compared on a block with results that
differ from row to row.
"""

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from msgspec import Struct

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.events import log
from ortdeploy.feeds.prepared import Prepared
from ortdeploy.plan.steps import PlannedThreadLayout
from ortdeploy.running.lanes import Lane, Mark
from ortdeploy.running.member import Finished
from ortdeploy.running.row_runner import Outcome
from ortdeploy.sessions.evidence import differing
from ortdeploy.sessions.opening import OpenedModel, OpenedSession
from ortdeploy.sessions.releasable import ReleasableSession, releasable

if TYPE_CHECKING:
    from concurrent.futures import Future

FIRST_BLOCKS = 6
"""Blocks that grow to their size, and tell how long the job will take."""

LEAST_SECONDS = 3.0
"""A job that is over sooner tries nothing."""

OPENINGS = 10
"""What is left of a job must take this much longer than opening the other sessions."""

LEAST_BLOCKS = 20
"""Blocks for each session of a layout that must be left: fewer would be over before slow ones are measured."""

SETTLING, MEASURED, EVEN = 1, 3, 8
"""Blocks that each session runs before it is measured; blocks that are measured at least; blocks of each session after
which it hardly matters if one has run one more.
"""

GLANCES, GLANCE, LONG, FAR = 2, 0.1, 1.0, 0.8
"""How often and for how many seconds each layout is measured at first. One that was slower than `FAR` of the best each
time, and is no more sparing, is not measured at length. One time alone may be when something else was running, unless
blocks are so slow that it was `LONG`.
"""

LEAST_WINDOW, MOST_WINDOW, SHARE = 0.2, 2.0, 0.04
"""Seconds for which a layout is measured at once: a share of what is left, within bounds."""

ROUNDS, MOST_ROUNDS = 2, 4
"""How often the layouts that are left are measured at length. A few long rounds find the same as many short ones.

Going over to other sessions costs some 20 ms: buffers are in no cache of the processor, and a pool's threads spin on.
"""

HOPELESS = 0.85
"""Of the best: a layout that is slower than this in all rounds so far, and no more sparing, is not measured again."""

CLOSE, MOST_SHARE = 0.92, 0.4
"""Of the best: the two fastest layouts are measured on if they are this near each other, which costs next to nothing.
All rounds together take no more than a share of what was left.
"""

WORTH = 1.03
"""A layout that takes more memory must be this much faster."""

SPARING = 0.9
"""Of the processor time: a layout that is as fast and needs less than this is better. Threads of a pool spin while they
wait, which slows down everything else on a busy machine.
"""

OpenLayout = Callable[[PlannedThreadLayout], OpenedModel]


class Lanes(Protocol):
    """What a trial needs of a stream."""

    @property
    def lane(self) -> Lane:
        """The lane that gets blocks."""

    def add_lane(self, sessions: Sequence[OpenedSession]) -> Lane:
        """Add sessions that wait until they get blocks."""

    def use(self, lane: Lane) -> None:
        """Give the blocks to a lane from now on."""

    def in_background(self, work: Callable[[], Any]) -> "Future[Any]":
        """Let a thread of the job do something beside its blocks."""

    def run_again(self, opened: OpenedSession, prepared: Prepared) -> Outcome:
        """Run a block once more; nobody counts it."""


_Blocks = Generator[None, tuple[Finished, Prepared], None]
"""A generator that is sent each finished block, with its tensors."""

_Measuring = Generator[None, tuple[Finished, Prepared], Sequence["_Pace"]]
"""The same, which returns the layouts that are left when it ends."""


class _Pace(Struct):
    """A layout that is tried, with the rows that it has run, the seconds that they took, and the processor seconds.

    `best_rate` is what it had when it was measured at its fastest, in rows per second.
    """

    opened: OpenedModel
    lane: Lane
    rows: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    best_rate: float = 0.0

    @property
    def name(self) -> str:
        return self.opened.layout or ""

    @property
    def rate(self) -> float:
        """Rows per second."""
        return self.rows / max(self.seconds, 1e-9)

    @property
    def cost(self) -> float:
        """Processor seconds a row, of the whole process."""
        return self.cpu / max(self.rows, 1)

    def add(self, begin: Mark, end: Mark) -> None:
        """Count the blocks of the layout's lane between two of its marks."""
        rows, seconds = end.rows - begin.rows, end.at - begin.at
        self.rows += rows
        self.seconds += seconds
        self.cpu += end.cpu - begin.cpu
        self.best_rate = max(self.best_rate, rows / max(seconds, 1e-9))


class LayoutTrial:
    """Tries the other layouts of one job. `opened` are the sessions that it has, or goes on with."""

    def __init__(
        self,
        begun: OpenedModel,
        others: Sequence[PlannedThreadLayout],
        *,
        open_layout: OpenLayout,
        keep: Callable[[str], None],
        last_row: int | None,
    ) -> None:
        """Take the sessions with which the job begins, and the `others`, which `open_layout` opens.

        `keep` remembers the name of what was chosen. The job ends before `last_row`, if that is known.
        """
        self.opened = releasable(begun)
        self.others = tuple(others)
        self._open_layout = open_layout
        self._keep = keep
        self._last_row = last_row
        self._row = 0
        self._blocks: _Blocks | None = None
        self._is_clear = True

    @property
    def callers(self) -> int:
        """How many threads call the sessions of all other layouts."""
        return sum(one.candidates[0].count * one.candidates[0].callers for one in self.others)

    def begin(self, stream: Lanes) -> None:
        """Begin with the first block of a stream."""
        self._blocks = self._try(stream)
        next(self._blocks)

    def finished(self, finished: Finished, prepared: Prepared) -> None:
        """Note a block that is through."""
        if self._blocks is not None:
            self._row = finished.block.start + finished.block.count
            try:
                self._blocks.send((finished, prepared))
            except StopIteration:
                self._blocks = None

    def _try(self, stream: Lanes) -> _Blocks:
        for _ in range(FIRST_BLOCKS):
            finished, prepared = yield
        while finished.outcome.failed or finished.outcome.skipped or not _differ(finished.outcome, prepared):
            finished, prepared = yield
        members = len(stream.lane.members)
        left = self._seconds_left(finished.block.count / max(finished.seconds, 1e-9) * members)
        if left is not None and left < self._least_seconds(finished.seconds / members):
            return
        opened = stream.in_background(partial(self._open_others, stream, prepared, finished.outcome))
        del finished, prepared  # which may be large
        while not opened.done():
            yield
        paces = [_Pace(self.opened, stream.lane)]
        paces += [_Pace(one, stream.add_lane(one.sessions)) for one in opened.result()]
        good: Sequence[_Pace] = paces
        if len(paces) > 1:
            good = yield from self._measure(stream, paces)
        yield from self._decide(stream, paces, _best(good))

    def _least_seconds(self, block: float) -> float:
        """Return how long the rest of a job must take; `block` are the seconds between the ends of two blocks."""
        opening = self.opened.seconds * sum(one.candidates[0].count for one in self.others)
        most = max(one.candidates[0].count * one.candidates[0].callers for one in self.others)
        return max(LEAST_SECONDS, OPENINGS * opening, LEAST_BLOCKS * most * block)

    def _seconds_left(self, rate: float) -> float | None:
        """Return how long the rest of the job takes at `rate` rows per second; None if nobody knows its end."""
        return None if self._last_row is None else (self._last_row - self._row) / rate

    def _open_others(self, stream: Lanes, block: Prepared, expected: Outcome) -> list[OpenedModel]:
        """Open the other layouts, and return those whose results of a block are the same to the last bit."""
        found = []
        for layout in self.others:
            try:
                opened = releasable(self._open_layout(layout))
                outcome = stream.run_again(opened.sessions[0], block)
            except (OrtdeployError, MemoryError) as error:
                log.debug("threads.refused", layout=layout.name, reason=str(error))
                self._is_clear = False
                continue
            differing = _differing(expected, outcome)
            if differing is None:
                found.append(opened)
            else:
                log.info("threads.differ", layout=layout.name, kept=self.opened.layout, column=differing)
        return found

    def _measure(self, stream: Lanes, paces: Sequence[_Pace]) -> _Measuring:
        """Measure layouts: all for short, then at length those not far behind; return those measured to the end.

        Only these compare with each other: rows, or the machine, may have become slower since others were left out.
        """
        yield from _settle(stream.lane)  # others were opened beside the blocks before
        for _ in range(GLANCES):
            for pace in paces:  # each again after all others, when what has slowed it down may be over
                yield from _measure_once(stream, pace, GLANCE)
            if min(pace.seconds for pace in paces) > LONG:
                break
        near = _promising(paces, FAR)
        if len(near) == 1:
            return near
        left = self._seconds_left(max(pace.rate for pace in near))
        window = MOST_WINDOW if left is None else min(max(LEAST_WINDOW, left * SHARE), MOST_WINDOW)
        near = yield from self._measure_at_length(stream, near, window)
        if len(near) > 1:
            yield from self._compare(stream, near, window, math.inf if left is None else left * MOST_SHARE)
        return near

    def _measure_at_length(self, stream: Lanes, paces: Sequence[_Pace], window: float) -> _Measuring:
        """Measure layouts in turn, for other processes slow a machine down for tenths of a second."""
        tried = paces
        for _ in range(ROUNDS):
            yield from _measure_round(stream, tried, window)
            tried = _promising(tried, HOPELESS)
            if len(tried) == 1:
                break
        return tried

    def _compare(self, stream: Lanes, paces: Sequence[_Pace], window: float, most: float) -> _Blocks:
        """Measure the two fastest layouts on if they are near each other, for at most `most` seconds in all."""
        first, second = sorted(paces, key=lambda pace: pace.rate, reverse=True)[:2]
        for _ in range(ROUNDS, MOST_ROUNDS):
            near = CLOSE < second.rate / first.rate < 1 / CLOSE
            if not near or sum(pace.seconds for pace in paces) > most:
                return
            yield from _measure_round(stream, (first, second), window)

    def _decide(self, stream: Lanes, paces: Sequence[_Pace], best: _Pace) -> _Blocks:
        """Go on with the best layout, and let go of the sessions of the others."""
        if len(paces) > 1:
            rates = {pace.name: round(pace.rate, 1) for pace in paces}
            model = best.opened.step.model if best.opened.step else ""
            log.info("threads.chosen", model=model, layout=best.name, rows_per_second=rates)
        if self._is_clear:
            self._keep(best.name)
        self.opened = best.opened
        stream.use(best.lane)
        others = [pace for pace in paces if pace is not best]
        for pace in others:
            pace.lane.close()
        while any(pace.lane.is_busy for pace in others):
            yield
        for one in (one for pace in others for one in pace.opened.sessions):
            if isinstance(one.session, ReleasableSession):
                one.session.release()


def _promising(paces: Sequence[_Pace], share: float) -> Sequence[_Pace]:
    """Return the layouts that came near the fastest at least once, or need clearly less of the processor than it."""
    fastest = max(paces, key=lambda pace: pace.rate)
    rate, cost = fastest.rate * share, fastest.cost * SPARING
    return [pace for pace in paces if pace.best_rate > rate or pace.cost < cost]


def _measure_round(stream: Lanes, paces: Sequence[_Pace], window: float) -> _Blocks:
    """Add to the paces of layouts, beginning with the one in use: so each round goes back the way of the one before.

    That goes over to other sessions less often, and a machine that becomes slower bit by bit is so for all alike.
    """
    for pace in reversed(paces) if paces[-1].lane is stream.lane else paces:
        yield from _measure_once(stream, pace, window)


def _settle(lane: Lane) -> _Blocks:
    """Let each session of a lane run the blocks that are not measured."""
    settled = lane.mark.blocks + SETTLING * len(lane.members)
    while lane.mark.blocks < settled:
        yield


def _measure_once(stream: Lanes, pace: _Pace, window: float) -> _Blocks:
    """Add to the pace of one layout, from the end of one block to the end of another.

    Sessions that began together end together. So each has to run as many blocks: else some count that others had begun.
    """
    lane = pace.lane
    members = len(lane.members)
    if stream.lane is not lane:
        stream.use(lane)
        yield from _settle(lane)
    begin = end = lane.mark
    blocks, seconds = 0, 0.0
    while blocks < max(MEASURED, members) or seconds < window or (blocks % members and blocks < EVEN * members):
        yield
        end = lane.mark
        blocks, seconds = end.blocks - begin.blocks, end.at - begin.at
    pace.add(begin, end)


def _best(paces: Sequence[_Pace]) -> _Pace:
    """Return the layout that is nearly as fast as the fastest, and was begun with or takes least memory.

    One that is as fast with clearly less processor time is better.
    """
    fastest = max((pace.rate for pace in paces if pace.seconds), default=0.0)
    good = [pace for pace in paces if not pace.seconds or pace.rate * WORTH >= fastest]
    best = good[0]
    for pace in good[1:]:
        if pace.cost < best.cost * SPARING:
            best = pace
    return best


def _differ(outcome: Outcome, prepared: Prepared) -> bool:
    """Return whether the results of a block's rows differ: if all are equal, any layout may give the same."""
    results = (column for name, column in outcome.columns.items() if name not in prepared.block.columns)
    return any(differing(column) is not None for column in results)


def _differing(one: Outcome, other: Outcome) -> str | None:
    """Return the first column in which two outcomes of a block differ in a bit; None if they do not."""
    if len(one.failed) != len(other.failed) or one.skipped != other.skipped:
        return ""
    return next((name for name in one.columns if not _same_bits(one.columns[name], other.columns[name])), None)


def _same_bits(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        return bool(one.tolist() == other.tolist() if one.dtype == object else one.tobytes() == other.tobytes())
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same_bits(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same_bits, one, other))
    return bool(one == other)
