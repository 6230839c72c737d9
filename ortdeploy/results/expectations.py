"""What a job expects of its columns, counted chunk by chunk in little memory, and exactly.

A comparison of a quantile asks how many values lie on one side of a bound, and one of distinct values for one value
more than the bound at most. So neither keeps what it has seen.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
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
        self.bound = float(number) / (100 if percent else 1)
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
    """One expectation of a column."""

    def add(self, chunk: Chunk) -> None:
        """Count values. Raises ValueError if they are no numbers, where numbers are counted."""

    def missed(self) -> str | None:
        """Return what was found instead; None if it is as expected."""


class _Nulls:
    def __init__(self, wanted: float | str) -> None:
        self._limit = at_most(wanted)
        self._is_share = self._limit.text.endswith("%")
        self._nulls = self._size = 0

    def add(self, chunk: Chunk) -> None:
        self._nulls += chunk.nulls
        self._size += chunk.size

    def missed(self) -> str | None:
        found = self._nulls / max(self._size, 1) if self._is_share else self._nulls
        if self._limit.holds(found):
            return None
        return f"{self._nulls:,} of {self._size:,} values are null, and {self._limit.text} are expected"


class _Mean:
    def __init__(self, wanted: Sequence[float]) -> None:
        self._least, self._most = wanted
        self._sum, self._count = 0.0, 0

    def add(self, chunk: Chunk) -> None:
        self._sum += math.fsum(chunk.numbers.tolist())
        self._count += len(chunk.numbers)

    def missed(self) -> str | None:
        found = self._sum / self._count if self._count else math.nan
        if self._least <= found <= self._most:
            return None
        return f"the mean is {found:g}, and {self._least:g} to {self._most:g} is expected"


class _Quantile:
    """The q-quantile is the least value that at least q of all values do not exceed."""

    def __init__(self, share: str, wanted: str) -> None:
        self._share, self._wanted = share, Comparison(wanted)
        self._below = self._count = 0

    def add(self, chunk: Chunk) -> None:
        numbers, bound = chunk.numbers, self._wanted.bound
        is_within = self._wanted.sign in {"<=", ">"}
        self._below += int(np.count_nonzero(numbers <= bound if is_within else numbers < bound))
        self._count += len(numbers)

    def missed(self) -> str | None:
        needed = float(self._share) * self._count
        holds = self._below >= needed if self._wanted.is_upper else self._below < needed
        if self._count and holds:
            return None
        sign = "<=" if self._wanted.sign in {"<=", ">"} else "<"
        return (
            f"{self._below:,} of {self._count:,} values are {sign} {self._wanted.bound:g}, and quantile {self._share} "
            f"is expected to be {self._wanted.text}"
        )


class _Distinct:
    def __init__(self, wanted: int | str) -> None:
        self._wanted = Comparison(str(wanted)) if str(wanted)[0] in "<>" else Comparison(f">= {wanted}")
        self._most = int(self._wanted.bound) + 1
        self._seen: set[str] = set()

    def add(self, chunk: Chunk) -> None:
        for text in chunk.texts if len(self._seen) < self._most else ():
            self._seen.add(text)
            if len(self._seen) == self._most:
                break

    def missed(self) -> str | None:
        if self._wanted.holds(len(self._seen)):
            return None
        many = f"{len(self._seen):,}{' or more' if len(self._seen) == self._most else ''}"
        return f"it has {many} different values, and {self._wanted.text} are expected"


class _Share:
    def __init__(self, value: str, wanted: str) -> None:
        self._value, self._wanted = value, Comparison(wanted)
        self._found = self._size = 0

    def add(self, chunk: Chunk) -> None:
        self._found += chunk.texts.count(self._value)
        self._size += chunk.size

    def missed(self) -> str | None:
        share = self._found / self._size if self._size else math.nan
        if self._wanted.holds(share):
            return None
        return f"{share:.4%} of its values are {self._value}, and {self._wanted.text} are expected"


def checks_of(expected: Mapping[str, Any]) -> dict[str, list[Check]]:
    """Return the checks of each column that a job expects something of."""
    return {name: list(_checks(said)) for name, said in expected.items() if name not in {ROWS, OTHERWISE}}


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
