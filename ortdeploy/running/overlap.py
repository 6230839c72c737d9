"""Chooses whether a job's threads work at the same time or in turn, by measuring both while the job runs.

Only one thread at a time runs Python. Reading costs nothing while a session runs native code. But the operations of a
pipeline are Python too: the threads then take the interpreter from each other some thousand times a second, which can
cost more than the overlap gains. So both ways are measured, and the faster one is kept for a while.
"""

import threading
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Self

from ortdeploy.events import log
from ortdeploy.records import mutable_record

FIRST_BLOCKS = 6
"""The first blocks, which still grow to their size and are not measured."""

SETTLING, MEASURED, MEASURED_SECONDS, ROUNDS = 1, 3, 0.15, 3
"""How both ways are measured: blocks that settle, blocks and seconds that are measured, and the most rounds.

The measurements are short and take turns, because other processes slow a machine down for tenths of a second.
"""

PLAINLY = 1.15
"""One way is quicker than the other by this much: a further round would cost more than it tells."""

CLEARLY = 1.03
"""In turn must be quicker by this much: at the same time is better whenever something else slows a thread down."""

LEAST_PAUSE, MOST_PAUSE = 20, 1280
"""The pause before both ways are measured again, as a multiple of the time that measuring took. It doubles each time,
because earlier results still count.
"""

_Blocks = Generator[None, int, None]
"""A generator that is sent the number of rows of each finished block."""


class Overlap:
    """Tells the threads of one job when to wait for each other."""

    def __init__(self, *, undecided: bool) -> None:
        """Let all threads work at the same time for good; if `undecided`, begin in turn and measure both ways."""
        self._lock = threading.Lock()
        self._in_turn = undecided
        self._blocks = self._find_out() if undecided else None
        if self._blocks is not None:
            next(self._blocks)

    @classmethod
    def always_in_turn(cls) -> Self:
        """Return an overlap that lets one thread work at a time, for good."""
        overlap = cls(undecided=False)
        overlap._in_turn = True
        return overlap

    def section(self) -> AbstractContextManager[object]:
        """Return the lock to hold while processing a block, or a null context."""
        return self._lock if self._in_turn else nullcontext()

    def finished(self, rows: int) -> None:
        """Note the rows of a finished block."""
        if self._blocks is not None:
            self._blocks.send(rows)

    def _find_out(self) -> _Blocks:
        """Measure both ways, keep the better one for a while, and repeat."""
        at_once, in_turn = _Pace(), _Pace()
        yield from _pass(FIRST_BLOCKS)
        pause = LEAST_PAUSE
        while True:
            begin = time.perf_counter()
            for _ in range(ROUNDS):
                yield from self._measure(in_turn, in_turn=True)
                yield from self._measure(at_once, in_turn=False)
                gain = in_turn.rate / at_once.rate
                if not 1 / PLAINLY < gain < PLAINLY:
                    break
            self._in_turn = gain > CLEARLY
            rates = [round(pace.rate, 1) for pace in (at_once, in_turn)]
            log.debug("threads.compared", in_turn=self._in_turn, rows_per_second=rates)
            until = time.perf_counter() + pause * (time.perf_counter() - begin)
            while time.perf_counter() < until:
                yield
            pause = min(pause * 2, MOST_PAUSE)
            at_once.age()
            in_turn.age()

    def _measure(self, pace: "_Pace", *, in_turn: bool) -> _Blocks:
        """Add to the pace of one way."""
        self._in_turn = in_turn
        yield from _pass(SETTLING)
        begin, blocks = time.perf_counter(), 0
        while blocks < MEASURED or time.perf_counter() - begin < MEASURED_SECONDS:
            pace.rows += yield
            blocks += 1
        pace.seconds += time.perf_counter() - begin


@mutable_record
class _Pace:
    """Rows and the seconds they took."""

    rows: float = 0.0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Rows per second."""
        return self.rows / self.seconds

    def age(self) -> None:
        """Give half the weight to what was measured so far."""
        self.rows /= 2
        self.seconds /= 2


def _pass(blocks: int) -> _Blocks:
    for _ in range(blocks):
        yield
