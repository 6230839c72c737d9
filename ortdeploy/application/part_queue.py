"""Decides which worker makes which part, and which part is given to a second worker.

It knows numbers and times, and no engine. A part that is made twice does no harm, because the first decision stands.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from statistics import median

from msgspec import Struct, field

from ortdeploy.diagnostics import OrtdeployError

IN_FLIGHT = 2
"""Parts that a worker has at a time: it begins the second before the answer to the first arrives."""

MOST_LOSSES = 3
"""How often a part may be lost before the job fails; also, how many workers may have a part at the same time."""

OVERDUE_SECONDS = 60.0
_OVERDUE = 4
"""A part that takes longer than this many medians, and OVERDUE_SECONDS, is also given to a worker that is idle."""

_MOST_TIMES = 1000


class LostPartError(OrtdeployError):
    """A part that three workers could not make."""

    def __init__(self, part: int, reasons: Sequence[str]) -> None:
        super().__init__(f"part {part} took down its worker {len(reasons)} times: {'; '.join(reasons)}")
        self.part = part


class _Given(Struct):
    """The parts that a worker has, in their order, and since when it makes the first."""

    parts: deque[int] = field(default_factory=deque)
    since: float = 0.0


class PartQueue:
    """The parts that are left, and which worker has which. `clock` values are seconds of one clock."""

    def __init__(self, left: Iterable[int]) -> None:
        self._waiting = deque(left)
        self._left = set(self._waiting)
        self._given: dict[int, _Given] = {}
        self._losses: dict[int, list[str]] = {}
        self._lost_by: dict[int, set[int]] = {}
        self._seconds: deque[float] = deque(maxlen=_MOST_TIMES)

    @property
    def left(self) -> int:
        """How many parts are not decided."""
        return len(self._left)

    def is_idle(self, worker: int) -> bool:
        """Return whether a worker has no part."""
        return not self._of(worker).parts

    def give(self, worker: int, clock: float) -> int | None:
        """Return the next part for a worker; None if there is none for it now."""
        given = self._of(worker)
        if len(given.parts) >= IN_FLIGHT:
            return None
        part = self._take(worker) if self._waiting else None
        if part is None and not given.parts:
            part = self._second(worker, clock)
        if part is None:
            return None
        if not given.parts:
            given.since = clock
        given.parts.append(part)
        return part

    def decided(self, worker: int, part: int, clock: float) -> bool:
        """Note that a part of a worker is decided; return whether this was not known before."""
        given = self._of(worker)
        if part in given.parts:
            if given.parts[0] == part:
                self._seconds.append(clock - given.since)
            given.parts.remove(part)
            given.since = clock
        is_news = part in self._left
        self._left.discard(part)
        return is_news

    def failed(self, worker: int, part: int, reason: str, clock: float) -> None:
        """Note that a worker could not make a part; that counts nothing if another worker has made it meanwhile.

        Raises LostPartError if it was the third.
        """
        given = self._of(worker)
        if part in given.parts:
            given.parts.remove(part)
            given.since = clock
        self._give_back([part])
        if part in self._left:
            self._count(worker, part, reason)

    def lost(self, worker: int, reason: str | None) -> None:
        """Take back the parts of a worker that is gone; with a reason, the part that it was making may be the cause.

        Raises LostPartError if that was lost for the third time.
        """
        parts = list(self._given.pop(worker, _Given()).parts)
        self._give_back(parts)
        if reason is not None and parts and parts[0] in self._left:
            self._count(worker, parts[0], reason)

    def overdue(self, clock: float) -> list[tuple[int, int, float]]:
        """Return the workers that take too long, each with its part and the seconds so far."""
        latest = clock - self._patience()
        return [
            (worker, given.parts[0], clock - given.since)
            for worker, given in self._given.items()
            if given.parts and given.parts[0] in self._left and given.since < latest
        ]

    def _of(self, worker: int) -> _Given:
        return self._given.setdefault(worker, _Given())

    def _take(self, worker: int) -> int | None:
        """Return the first waiting part; a part that this worker has lost before only if no other is waiting."""
        while self._waiting and self._waiting[0] not in self._left:  # decided by a worker that was given up
            self._waiting.popleft()
        spared = {part for part, workers in self._lost_by.items() if worker in workers}
        part = next((one for one in self._waiting if one not in spared and one in self._left), None)
        if part is None and self._waiting and not self._of(worker).parts:
            part = self._waiting[0]
        if part is not None:
            self._waiting.remove(part)
        return part

    def _second(self, worker: int, clock: float) -> int | None:
        """Return a part that another worker has but has not begun, or takes too long for."""
        late = {part for _, part, _ in self.overdue(clock)}
        best = None
        for other, given in self._given.items():
            if other == worker:
                continue
            for place, part in enumerate(given.parts):
                if part in self._left and (place > 0 or part in late) and self._copies(part) < MOST_LOSSES:
                    best = part if best is None else min(best, part)
        return best

    def _copies(self, part: int) -> int:
        return sum(part in given.parts for given in self._given.values())

    def _patience(self) -> float:
        return max(OVERDUE_SECONDS, _OVERDUE * median(self._seconds)) if self._seconds else OVERDUE_SECONDS

    def _give_back(self, parts: Iterable[int]) -> None:
        """Put parts back that no other worker has."""
        back = [one for one in parts if one in self._left and one not in self._waiting and not self._copies(one)]
        self._waiting.extendleft(reversed(back))

    def _count(self, worker: int, part: int, reason: str) -> None:
        self._lost_by.setdefault(part, set()).add(worker)
        reasons = self._losses.setdefault(part, [])
        reasons.append(reason)
        if len(reasons) >= MOST_LOSSES:
            raise LostPartError(part, reasons)
