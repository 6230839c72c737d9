"""What a job expects of its columns, counted chunk by chunk in little memory, and exactly, however rows are divided.

A comparison of a quantile asks how many values lie on one side of a bound, and one of distinct values for one value
more than the bound at most. So neither keeps what it has seen, and counts of several parts of the rows can be joined.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from ortdeploy.tensors.columns import Array, Column

ROWS, OTHERWISE, CHANGE = "rows", "otherwise", "change"
"""Keys that stand among columns: what is expected of the number of rows, and what happens otherwise."""

_COMPARISON = re.compile(r"(<=|>=|<|>) ?([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)(%?)\Z")


class Comparison:
    """A bound on one side: `<= 5%`."""

    def __init__(self, text: str) -> None:
        """Take the text of a manifest, which the schema has accepted."""
        self.text = text
        found = _COMPARISON.match(text)
        if found is None:
            raise ValueError(f"{text!r} is no comparison")
        self.sign, number, percent = found.groups()
        digits, _, exponent = number.lower().partition("e")
        self.bound = float(f"{digits}e{int(exponent or 0) - (2 if percent else 0)}")  # 0.7% is what 7 of 1,000 are
        self.is_upper, self.is_strict = self.sign.startswith("<"), len(self.sign) == 1

    def holds(self, value: float) -> bool:
        """Return whether a value is on the right side."""
        above = value < self.bound if self.is_strict else value <= self.bound
        below = value > self.bound if self.is_strict else value >= self.bound
        return above if self.is_upper else below


def at_most(limit: float | str) -> Comparison:
    """Return a limit as a comparison: a number and a share are upper bounds."""
    text = str(limit)
    return Comparison(text if text[0] in "<>" else f"<= {text}")


class Chunk:
    """Values of a column, of which those that are null, NaN or an empty text count as null."""

    def __init__(self, column: Column) -> None:
        """Take arrays or Python's values; an array within a row has as many values."""
        flat = column.reshape(-1) if isinstance(column, np.ndarray) else list(_flat(column))
        self.size = len(flat)
        if isinstance(flat, np.ndarray) and flat.dtype.kind in "iufb":
            self.present: Array | list[Any] = flat[~np.isnan(flat)] if flat.dtype.kind == "f" else flat
        else:
            self.present = [value for value in flat if not _is_null(value)]
        self.nulls = self.size - len(self.present)

    @cached_property
    def numbers(self) -> Array:
        """The values as float64 [values]. Raises ValueError if one is no number."""
        return np.asarray(
            self.present if isinstance(self.present, np.ndarray) else list(map(float, self.present)), float
        )

    @cached_property
    def texts(self) -> list[str]:
        """The values as text, as CSV has them."""
        values = self.present.tolist() if isinstance(self.present, np.ndarray) else self.present
        return [str(value).lower() if isinstance(value, bool) else str(value) for value in values]

    def count(self, text: str) -> int:
        """Return how many values are written as a text; of numbers, how many are equal to what it says."""
        if isinstance(self.present, np.ndarray) and self.present.dtype.kind in "iuf":
            return int(np.count_nonzero(self.present == _number(text)))
        if isinstance(self.present, list) and set(map(type, self.present)) <= {int, float}:
            return self.present.count(_number(text))
        return self.texts.count(text)


def _number(text: str) -> float:
    """Return the number that a text says; NaN if it says none, which is equal to nothing."""
    for read in (int, float):
        with suppress(ValueError):
            return read(text)
    return math.nan


def _flat(values: Sequence[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, np.ndarray):
            yield from value.reshape(-1).tolist()
        elif isinstance(value, list):
            yield from _flat(value)
        else:
            yield value


def _is_null(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


class Check(Protocol):
    """One expectation of a column; its counts are all that it knows of its values, as JSON."""

    @property
    def counts(self) -> list[Any]:
        """The counts."""

    def add(self, chunk: Chunk) -> None:
        """Count values. Raises ValueError if they are no numbers, where numbers are counted."""

    def join(self, counts: Sequence[Any]) -> None:
        """Add what was counted of other rows."""

    def missed(self) -> str | None:
        """Return what was found instead; None if it is as expected."""


class _Sums:
    """What is counted are numbers that add up."""

    def __init__(self) -> None:
        self.counts: list[Any] = [0, 0]

    def join(self, counts: Sequence[Any]) -> None:
        self.counts = [one + other for one, other in zip(self.counts, counts, strict=True)]


class _Nulls(_Sums):
    def __init__(self, wanted: float | str) -> None:
        super().__init__()
        self._limit = at_most(wanted)
        self._is_share = self._limit.text.endswith("%")

    def add(self, chunk: Chunk) -> None:
        self.join([chunk.nulls, chunk.size])

    def missed(self) -> str | None:
        nulls, size = self.counts
        found = nulls / max(size, 1) if self._is_share else nulls
        if self._limit.holds(found):
            return None
        return f"{nulls:,} of {size:,} values are null, and {self._limit.text} are expected"


class _Mean:
    """The counts are how many values there are, and some numbers whose exact sum is that of the values."""

    def __init__(self, wanted: Sequence[float]) -> None:
        self._least, self._most = wanted
        self.counts: list[Any] = [0]

    def add(self, chunk: Chunk) -> None:
        self.join([len(chunk.numbers), *chunk.numbers.tolist()])

    def join(self, counts: Sequence[Any]) -> None:
        self.counts = [self.counts[0] + counts[0], *_few([*self.counts[1:], *counts[1:]])]

    def missed(self) -> str | None:
        count, *sums = self.counts
        found = math.fsum(sums) / count if count else math.nan
        if self._least <= found <= self._most:
            return None
        return f"the mean is {found:g}, and {self._least:g} to {self._most:g} is expected"


def _few(numbers: list[float]) -> list[float]:
    """Return a few numbers with the same exact sum: it rounded, then what that leaves, and so on."""
    found: list[float] = []
    while rest := math.fsum([*numbers, *(-one for one in found)]):
        if not math.isfinite(rest):
            return [rest]
        found.append(rest)
    return found


class _Quantile(_Sums):
    """The q-quantile is the least value that at least q of all values do not exceed."""

    def __init__(self, share: str, wanted: str) -> None:
        super().__init__()
        self._share, self._wanted = share, Comparison(wanted)

    def add(self, chunk: Chunk) -> None:
        numbers, bound = chunk.numbers, self._wanted.bound
        is_within = self._wanted.sign in {"<=", ">"}
        self.join([int(np.count_nonzero(numbers <= bound if is_within else numbers < bound)), len(numbers)])

    def missed(self) -> str | None:
        below, count = self.counts
        needed = Decimal(self._share) * count
        holds = below >= needed if self._wanted.is_upper else below < needed
        if count and holds:
            return None
        sign = "<=" if self._wanted.sign in {"<=", ">"} else "<"
        return (
            f"{below:,} of {count:,} values are {sign} {self._wanted.bound:g}, and quantile {self._share} "
            f"is expected to be {self._wanted.text}"
        )


class _Distinct:
    """The counts are the different values, up to one more than it takes to compare them."""

    def __init__(self, wanted: int | str) -> None:
        self._wanted = Comparison(str(wanted)) if str(wanted)[0] in "<>" else Comparison(f">= {wanted}")
        self._most = int(self._wanted.bound) + 1
        self._seen: set[str] = set()

    @property
    def counts(self) -> list[Any]:
        return sorted(self._seen)

    def add(self, chunk: Chunk) -> None:
        self.join(chunk.texts if len(self._seen) < self._most else ())

    def join(self, counts: Sequence[Any]) -> None:
        for text in counts:
            if len(self._seen) == self._most:
                break
            self._seen.add(text)

    def missed(self) -> str | None:
        if self._wanted.holds(len(self._seen)):
            return None
        many = f"{len(self._seen):,}{' or more' if len(self._seen) == self._most else ''}"
        return f"it has {many} different values, and {self._wanted.text} are expected"


class _Share(_Sums):
    def __init__(self, value: str, wanted: str) -> None:
        super().__init__()
        self._value, self._wanted = value, Comparison(wanted)

    def add(self, chunk: Chunk) -> None:
        self.join([chunk.count(self._value), chunk.size])

    def missed(self) -> str | None:
        found, size = self.counts
        share = found / size if size else math.nan
        if self._wanted.holds(share):
            return None
        return f"{share:.4%} of its values are {self._value}, and {self._wanted.text} are expected"


class Counts:
    """What was counted of some rows of a job, of all columns that it expects something of."""

    def __init__(self, expected: Mapping[str, Any]) -> None:
        """Begin without rows."""
        said = {name: one for name, one in expected.items() if name not in {ROWS, OTHERWISE}}
        self._of = json.loads(json.dumps(said))
        self._checks = {name: list(_checks(one)) for name, one in said.items()}
        self._wrong: set[str] = set()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are counted."""
        return tuple(self._checks)

    def add(self, name: str, column: Column) -> None:
        """Count values of a column. One that is no number where numbers are counted is what is missed of it."""
        chunk = Chunk(column)
        for check in self._checks[name]:
            with self._noting(name):
                check.add(chunk)

    def plain(self) -> dict[str, Any]:
        """Return the counts as JSON, with what is expected."""
        found = {name: [check.counts for check in checks] for name, checks in self._checks.items()}
        return {"of": self._of, "found": found, "wrong": sorted(self._wrong)}

    def join(self, plain: Mapping[str, Any]) -> bool:
        """Add the counts of other rows; return False, and add nothing, if something else was expected of them."""
        if plain.get("of") != self._of:
            return False
        self._wrong.update(plain["wrong"])
        for name, checks in self._checks.items():
            for check, counts in zip(checks, plain["found"][name], strict=True):
                with self._noting(name):
                    check.join(counts)
        return True

    @contextmanager
    def _noting(self, name: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, TypeError, OverflowError):
            self._wrong.add(name)

    def missed(self) -> Iterator[str]:
        """Yield what is not as expected."""
        for name, checks in self._checks.items():
            found = ["a value is no number"] if name in self._wrong else filter(None, (one.missed() for one in checks))
            yield from (f"{name}: {one}" for one in found)


def _checks(said: Mapping[str, Any]) -> Iterator[Check]:
    if "nulls" in said:
        yield _Nulls(said["nulls"])
    if "mean" in said:
        yield _Mean(said["mean"])
    for share, wanted in said.get("quantile", {}).items():
        yield _Quantile(str(share), wanted)
    if "distinct" in said:
        yield _Distinct(said["distinct"])
    for value, wanted in said.get("share", {}).items():
        yield _Share(str(value).lower() if isinstance(value, bool) else str(value), wanted)


def changed_rows(expected: Mapping[str, Any], rows: int, before: int | None) -> str | None:
    """Return what is wrong with the number of rows beside that of the last good run; None if nothing is."""
    wanted = expected.get(ROWS, {}).get(CHANGE)
    if wanted is None or not before:
        return None
    change = abs(rows - before) / before
    if Comparison(wanted).holds(change):
        return None
    return f"{rows:,} rows are {change:.1%} off the {before:,} of the last good run, and {wanted} is expected"
