"""What a job takes of memory: estimated from sizes before it has run, measured as soon as some of its rows have."""

from collections.abc import Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from ortdeploy.process.memory_limit import NEAR
from ortdeploy.units import format_size

ROOMY = 0.85
"""A job that takes less than this share of its limit keeps the CPU arena: it does not come near."""

ESTIMATED = 0.5
"""The same for a job that was not measured: an estimate may be wrong by a factor of two."""

PROCESS_PART, WEIGHTS_PART = "process", "weights"
"""The parts that every job takes, however few its rows are."""

ROWS_AND_RESULTS = "rows and results"
"""The part that follows from its rows."""


class MemoryPart(Struct, frozen=True, kw_only=True):
    """One part of what a job is estimated to take: process, weights, activations, or rows and results, in bytes."""

    what: str
    size: int


class Way(Struct, frozen=True, kw_only=True):
    """How a job's sessions run: with the CPU arena or without, and by how many callers.

    `callers` are those of the one session that has a caller for each core; None: the manifest says how many.
    """

    arena: bool
    callers: int | None = None


class MeasuredMemory(Struct, frozen=True, kw_only=True):
    """The peak of a process that ran this number of `rows` in one way, in bytes; `over`: it would have taken more."""

    way: Way
    size: int
    rows: int
    over: bool = False


class MemoryForecast(Struct, frozen=True, kw_only=True):
    """What a job takes at most, in bytes: `measured`, or else estimated by `parts`; what of these is not known.

    `limit` is the manifest's, `bound` the bytes that there are: the limit, or what the machine has. What was measured
    is remembered under `key`; without one, the job cannot be measured here. `arena` is what the manifest says of it.
    To measure, `first_rows` run; all rows take `rest` bytes beside what these take. If its own batch does not fit,
    `fitting` is one that does. `disk` is what its output takes, if that does not depend on values. If thread layouts
    are to be measured, `thread_layouts` are those that its limits may have room for, with what it takes in each by
    estimate. `callers` are as many threads as may call its session at once, if that has one for each core; None: the
    manifest says how many.
    """

    parts: tuple[MemoryPart, ...]
    unknown: str | None = None
    limit: int | None = None
    bound: int | None = None
    key: str = ""
    arena: bool | None = None
    measured: tuple[MeasuredMemory, ...] = ()
    first_rows: int = 0
    rest: int = 0
    fitting: int | None = None
    disk: int | None = None
    thread_layouts: Mapping[str, int] = field(default_factory=dict)
    callers: int | None = None

    @property
    def estimated(self) -> int:
        """The sum of what is known before a run."""
        return sum(part.size for part in self.parts)

    @property
    def least(self) -> int:
        """What process and weights take alone."""
        return sum(part.size for part in self.parts if part.what in {PROCESS_PART, WEIGHTS_PART})

    @property
    def ways(self) -> tuple[Way, ...]:
        """The ways in which it may run, the fastest first.

        Without the arena a job takes no more than it uses; rows of varying shape may always take more than the first.
        """
        arenas = [self.arena] if self.arena is not None else [False] if self.unknown else [True, False]
        ways = [Way(arena=arena, callers=self.callers) for arena in arenas]
        alone = [Way(arena=arenas[-1], callers=1)] if (self.callers or 1) > 1 else []
        return (*ways, *alone)

    @property
    def chosen(self) -> MeasuredMemory | None:
        """The first way that was measured and fits; None if there is none."""
        return next((one for way in self.ways for one in self.measured if one.way == way and self._fits(one)), None)

    @property
    def callers_at_once(self) -> int | None:
        """As many callers as run at once: those of the way that fits, or as planned."""
        return self.callers if self.chosen is None else self.chosen.way.callers

    @property
    def unmeasured(self) -> Way | None:
        """The way to measure next; None if one fits, or none is left."""
        for way in self.ways:
            known = next((one for one in self.measured if one.way == way), None)
            if known is None or (known.over and (self.bound is None or known.size < self.bound)):
                return way
            if self._fits(known):
                return None
        return None

    @property
    def is_too_much(self) -> bool:
        """Whether it does not fit: in no way, as measured; or process and weights alone do not."""
        if self.bound is None or self.chosen is not None:
            return False
        return self.unmeasured is None or self.least > self.bound

    @property
    def total(self) -> int:
        """What it takes as measured, or else by estimate."""
        found = self.chosen or min(self.measured, key=lambda one: one.size, default=None)
        return self.estimated if found is None else found.size

    def total_of(self, layout: str | None) -> int:
        """Return the same in one way to use threads."""
        return self.total if layout is None else self.thread_layouts.get(layout, self.total)

    def has_room_for_arena(self, limit: int, layout: str | None) -> bool:
        """Return whether the job does not come near a limit with the CPU arena."""
        if self.unknown is not None:
            return False
        chosen = replace(self, bound=limit).chosen
        if chosen is not None and layout not in self.thread_layouts:
            return chosen.way.arena
        size = self.estimated if layout is None else self.thread_layouts.get(layout, self.estimated)
        return not self.measured and size < limit * ESTIMATED

    def with_measured(self, taken: MeasuredMemory) -> "MemoryForecast":
        """Return the forecast with one more way measured."""
        others = tuple(one for one in self.measured if one.way != taken.way)
        return replace(self, measured=(*others, taken))

    @property
    def excess(self) -> str:
        """How much it takes if that is too much, in words."""
        if self.unmeasured is None:
            over = all(one.over for one in self.measured if one.size == self.total)
            return f"takes {'more than ' if over else ''}{format_size(self.total)} as measured"
        parts = [part for part in self.parts if part.what in {PROCESS_PART, WEIGHTS_PART}]
        return f"takes at least {format_size(self.least)} ({parts_text(parts)})"

    def _fits(self, one: MeasuredMemory) -> bool:
        """Return whether a way fits; one that comes near the limit does if there is no other one left."""
        if one.over:
            return False
        share = 1 if one.way == self.ways[-1] else ROOMY if one.way.arena and self.arena is None else NEAR
        return self.bound is None or one.size <= self.bound * share


def parts_text(parts: Sequence[MemoryPart]) -> str:
    """`process 98 MiB, weights 13 MiB`."""
    return ", ".join(f"{part.what} {format_size(part.size)}" for part in parts)
