"""Decides which blocks of rows a comparison looks at, and notes on what it is proven.

Equal rows prove nothing: black frames give zeros in a graph that mixes rows as well, and on a provider that is wrong. A
comparison is proven once compared rows differed, and their results differed by more than the comparison allows. Each
input and each output whose values differ for the first time is a reason to look. After that, a block now and then is
looked at, at growing distances and at the end, for a small share of the time.
"""

import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
from msgspec import Struct, field

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.tensors.columns import Array, Column

SHARE, FLOOR, EASY = 0.01, 0.06, 0.7
"""The share of the time of runs that looks may take after the proof; and seconds of the processor that they may take in
any case, whatever else a machine has to do.

`EASY` of that is for looks at each block, which short runs leave time for; the rest for those at growing distances.
"""

_LAST = 0.05  # of the rows: those that are looked at in the end, whatever that takes

_ROWS = 16  # of a block that are looked at, at most

CLOSELY = 8
"""Looks that follow each other while rows differ and their results do not. Later ones are at growing distances."""

_PLAIN = (np.ndarray, np.generic)

_EXAMINED = 64  # rows of a column of Python objects that are compared with its first one

LENGTH = " (length)"
"""Behind the name of a text input: the length of its texts, to which rows beside them may be filled up."""


CPU, ROWS = "cpu_comparison", "row_independence"
"""Kinds of comparison: with the CPU provider, and of rows with what they give in other batches."""


class DisagreementError(OrtdeployError):
    """A comparison of some kind disagrees. `since` is the first row that has passed since the last look that agreed."""

    def __init__(self, message: str, since: int | None = None, kind: str = ROWS) -> None:
        """Take what differs; None: every row before was looked at."""
        super().__init__(message)
        self.since = since
        self.kind = kind


def clocks() -> tuple[float, float]:
    """Return the time, and the processor time of this thread, both in seconds."""
    return time.perf_counter(), time.thread_time()


def since(began: tuple[float, float]) -> tuple[float, float]:
    """Return the seconds, and those of the processor, since `clocks` returned a value."""
    now = clocks()
    return now[0] - began[0], now[1] - began[1]


class Evidence(Struct):
    """What one comparison has looked at: `rows` in `looks`. `blocks` have run, in `seconds`; looks took `spent`.

    These took `cpu` seconds of the processor, the last of them `cost` and `cpu_cost`.

    `ran` rows have run. `varied` are the inputs and outputs whose values differed between compared rows, of the known
    `inputs` and `outputs`. `since` is the first row since the last look that passed without one. `trouble` says why the
    last look could not be made. `of` is what was compared.
    """

    varied: set[str] = field(default_factory=set)
    is_begun: bool = False
    rows: int = 0
    looks: int = 0
    blocks: int = 0
    ran: int = 0
    looked_at: int = 0
    due: int = 2
    seconds: float = 0.0
    spent: float = 0.0
    cost: float = 0.0
    cpu: float = 0.0
    cpu_cost: float = 0.0
    runs: int = 0
    since: int | None = None
    trouble: str | None = None
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    is_remembered: bool = False
    of: str = "rows"

    @property
    def is_proven(self) -> bool:
        """Whether inputs and results have differed between rows that were compared."""
        return not self.varied.isdisjoint(self.inputs) and not self.varied.isdisjoint(self.outputs)

    @property
    def is_affordable(self) -> bool:
        """Whether another look is within the share of the time, or so short that it does not matter."""
        return self._has_room(1.0, 1.0)

    def _has_room(self, part: float, looks: float) -> bool:
        """Return whether some more looks are within a part of what they may take."""
        cost = self.cost or self.seconds / max(self.ran, 1)
        cpu_cost = self.cpu_cost or cost
        is_short = self.cpu + looks * cpu_cost < FLOOR * part
        return is_short or self.spent + looks * cost < SHARE * part * self.seconds

    def rows_to_look_at(self, least: int) -> int:
        """Return how many rows of a block there is time to run alone."""
        run = self.cpu / self.runs if self.runs else self.seconds / max(self.ran, 1)
        left = max(FLOOR * EASY - self.cpu, SHARE * EASY * self.seconds - self.spent)
        return max(least, min(int(left / 2 / max(run, 1e-6)), _ROWS))

    @property
    def last_rows(self) -> int:
        """How many rows are looked at in the end: all that wait if there is time, else a small share."""
        return _ROWS if self.is_affordable or not self.is_proven else max(2, int(_LAST * self.ran))

    def note_block(self, rows: int, seconds: float, inputs: Iterable[str], outputs: Iterable[str]) -> None:
        """Note a block that has run, before it is decided whether it is looked at."""
        self.blocks += 1
        self.ran += rows
        self.seconds += seconds
        if not self.inputs:
            self.inputs, self.outputs = tuple(inputs), tuple(outputs)

    def is_due(self, *, is_new: bool) -> bool:
        """Return whether the block is to be looked at; `is_new`: something in it differs that never has."""
        if is_new or not self.is_begun:
            return True
        if self.repeats:
            return False
        if self.trouble is not None or (not self.is_proven and self.looks < CLOSELY):
            return True
        return self._has_room(EASY, 2.0) or (self.blocks >= self.due and self.is_affordable)

    @property
    def repeats(self) -> bool:
        """Whether all rows so far were equal, so that a block with nothing new repeats what was looked at."""
        return self.is_begun and self.varied.isdisjoint(self.inputs)

    def agree(self, rows: int, varied: Iterable[str], took: tuple[float, float], runs: int = 1) -> bool:
        """Note a look that agreed, in some runs; return whether something has varied for the first time.

        `took` are its seconds, and those of the processor in this thread.
        """
        before = len(self.varied)
        self.varied.update(varied)
        self.is_begun = True
        self.rows += rows
        self.looks += 1
        self.runs += runs
        self.looked_at, self.due = self.blocks, 2 * self.blocks
        self.cost, self.cpu_cost = took
        self.spent += self.cost
        self.cpu += self.cpu_cost
        self.since = self.trouble = None
        return len(self.varied) > before

    def pass_by(self, row: int) -> None:
        """Note that the block which begins with a row is not looked at."""
        if self.since is None:
            self.since = row

    def give_up(self, why: str, rows: int, row: int) -> None:
        """Note rows that have run from a `row` on, and why they are not compared."""
        self.blocks += 1
        self.ran += rows
        self.trouble = why
        self.pass_by(row)

    def plain(self) -> dict[str, Any]:
        """Return what is proven on what, as JSON."""
        return {
            "rows": self.rows,
            "looks": self.looks,
            "since": self.since,
            "not_proven": self.why_not(),
            "remembered": self.is_remembered,
        }

    def why_not(self) -> str | None:
        """Return why nothing is proven; None if it is, or if nothing has run."""
        if self.is_proven or not self.blocks:
            return None
        if self.trouble is not None:
            return f"rows could not run again: {self.trouble}"
        if self.varied.isdisjoint(self.inputs):
            return f"all {self.of} were equal"
        return "all results were equal, or differed by less than the comparison allows"


def differing(column: Column, agree: tuple[float, float] | None = None, first: Any = None) -> int | None:
    """Return the place of a row in a column [rows, …] that differs from the `first` row […], or from its own first.

    Results must differ by more than `agree` allows, relative to the largest value and absolutely: else nobody could
    tell them apart. None if none does.
    """
    if not len(column):
        return None
    reference = column[0] if first is None else first
    if not isinstance(column, np.ndarray) or column.dtype == object or not isinstance(reference, _PLAIN):
        known = content(reference)
        return next((place for place in range(min(len(column), _EXAMINED)) if content(column[place]) != known), None)
    if np.shape(reference) != column.shape[1:]:
        return 0
    apart = _apart(column, np.asarray(reference), agree)
    if not apart.size:
        return None
    places = np.flatnonzero(apart.reshape(len(column), -1).any(axis=1))
    return int(places[0]) if len(places) else None


def _apart(column: Array, reference: Array, agree: tuple[float, float] | None) -> Array:
    """Return bool [rows, …]: which values of a column differ from those of a reference row […]."""
    unequal = column != reference
    if np.issubdtype(column.dtype, np.inexact):
        unequal &= ~(np.isnan(column) & np.isnan(reference))
        if agree is not None:
            finite = np.isfinite(column) & np.isfinite(reference)
            with np.errstate(invalid="ignore", over="ignore"):
                size = np.abs(column, where=finite, out=np.zeros(column.shape, np.abs(column[:0]).dtype))
                allowed = agree[1] + agree[0] * float(size.max(initial=0))
                unequal &= ~(finite & (np.abs(column - reference) <= allowed))
    return np.asarray(unequal)


def content(row: Any) -> Any:
    """Return the content of a row, to be compared."""
    if isinstance(row, dict):
        return {key: content(value) for key, value in row.items()}
    if isinstance(row, list | tuple):
        return [content(value) for value in row]
    array = np.asarray(row)
    return repr(array.tolist()) if array.dtype == object else (str(array.dtype), array.shape, array.tobytes())


def varying(
    feeds: Mapping[str, Column],
    results: Mapping[str, Column],
    agree: tuple[float, float] | None,
    *,
    but: Collection[str] = (),
    first: "tuple[Mapping[str, Any], Mapping[str, Any]] | None" = None,
) -> dict[str, int]:
    """Return by name where inputs and outputs [rows, …] differ from their first row, or from a row looked at before.

    Names in `but` are left out. Texts that differ in length count once more, under their name with `LENGTH`.
    """
    found: dict[str, int] = {}
    for columns, within, kept in ((feeds, None, first and first[0]), (results, agree, first and first[1])):
        for name, column in columns.items():
            if name not in but:
                place = differing(column, within, kept[name][0] if kept and name in kept else None)
                if place is not None:
                    found[name] = place
    for name, column in feeds.items():
        if is_text(column) and name + LENGTH not in but:
            places = range(min(len(column), _EXAMINED))
            place = next((one for one in places if _length(column[one]) != _length(column[0])), None)
            if place is not None:
                found[name + LENGTH] = place
    return found


def is_text(column: Column) -> bool:
    """Return whether rows of a column are texts, or objects, which may be filled up to the longest beside them."""
    return bool(len(column)) and np.asarray(column[0]).dtype.kind in "OUS"


def _length(text: Any) -> int:
    return len(str(text))
