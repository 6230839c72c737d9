"""Runs rows again, in other batches, and compares what they give with what they gave."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from ortdeploy.diagnostics import OrtdeployError, OutOfMemoryError, ProviderFailedError, TransientError
from ortdeploy.sessions.evidence import DisagreementError, is_text
from ortdeploy.tensors.columns import Array, Column, pick
from ortdeploy.tensors.types import format_shape

FEW = 3  # rows that run together in a batch of another size
_EQUAL_SHARE = 0.9  # of a row's whole numbers: where a float beside them is close, some of many flip
_LAST_BIT = {"int8", "uint8"}  # pixels and quantized numbers, which noise may round to their neighbour

RunRows = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Runs feeds [rows, …] and returns outputs [rows, …], both by name. Raises OrtdeployError."""


class MixedRowsError(OrtdeployError):
    """Results depend on the rows beside them. Names the output and the row, by its place in the batch."""

    def __init__(self, message: str, output: str, place: int | None = None) -> None:
        super().__init__(message)
        self.output = output
        self.place = place

    def with_row(self, row: int, since: int | None) -> DisagreementError:
        """Return the error with the number that the row has in its job, and the first row that was not looked at."""
        return DisagreementError(f"output {self.output}, row {row}: {self}", since)


class _LostAxisError(MixedRowsError):
    """A run of one row gave an output without rows: a graph may squeeze an axis of one."""


class RowsAgain(Struct, frozen=True, kw_only=True):
    """Runs rows again, in other batches, and compares what they give with what they gave.

    `feeds` and `results` are [rows, …]. `agree` are a relative and an absolute tolerance; None: only the numbers of
    rows are compared. `mixed` makes the error for an output that differs: of its name, the row's place, the size of the
    other batch, and in what. `as_given` is the shape of an output in its graph. `size`: the rows of each batch that the
    job ran; those of all batches, if it `takes_whole_batches`. Of the results of the `first` rows, the largest counts
    for the tolerance, beside those that run together.
    """

    run: RunRows
    feeds: Mapping[str, Column]
    results: Mapping[str, Any]
    size: int
    agree: tuple[float, float] | None
    mixed: Callable[[str, int, int, str], MixedRowsError]
    as_given: Callable[[str, Any], tuple[int, ...]]
    takes_whole_batches: bool = False
    is_slow: bool = False
    first: int = 0

    def prove(self, chosen: Sequence[int], others: Sequence[int], beside: Sequence[int]) -> None:
        """Run each of the `chosen` rows alone, and all in another order, together with those `beside` them.

        If only whole numbers differ, which may be a tie, `others` decide. Raises MixedRowsError, OrtdeployError.
        """
        try:
            self._compare_batches(chosen, beside, thorough=True)
        except _TieError as tie:
            if len(others) < 2:  # noqa: PLR2004  rows beside each other
                raise tie.as_error() from None
            try:
                self._compare_batches(others, (), thorough=True)
            except _TieError as again:
                raise again.as_error() from None

    def glance(self, chosen: Sequence[int], beside: Sequence[int]) -> None:
        """Run each of the `chosen` rows alone, and all together with those `beside` them.

        If one row may be a tie, the others decide. Raises as `prove`, and TransientError if there are none.
        """
        try:
            self._compare_batches(chosen, beside, thorough=False)
        except _TieError as tie:
            others = [place for place in (*chosen, *beside) if place != tie.as_error().place]
            if len(others) < 2:  # noqa: PLR2004  as above
                raise TransientError(f"only whole numbers differ, as a tie may cause ({tie})") from None
            try:
                self._compare_batches(others[:FEW], (), thorough=True)
            except _TieError as again:
                raise again.as_error() from None

    def _is_text(self) -> bool:
        """Return whether rows may be padded to the longest of their batch."""
        return any(map(is_text, self.feeds.values()))

    def _compare_batches(self, chosen: Sequence[int], beside: Sequence[int], *, thorough: bool) -> None:
        if not self.takes_whole_batches:
            try:
                for places in self._sizes(chosen, beside, thorough=thorough):
                    self._compare_few(places)
            except (ProviderFailedError, MixedRowsError, TransientError, OutOfMemoryError):
                raise
            except OrtdeployError:  # the graph takes the job's number of rows and no other
                pass
            else:
                return
        mixture = [*chosen, *beside][::-1]
        for place in chosen[-1:] if self.is_slow else chosen[::-1]:
            self._compare([place] * self.size)
        if len(mixture) > 1 and not self.is_slow:
            self._compare([mixture[place % len(mixture)] for place in range(self.size)])

    def _sizes(self, chosen: Sequence[int], beside: Sequence[int], *, thorough: bool) -> Iterator[list[int]]:
        """Yield the rows of batches to compare with: each alone, and all in another order.

        A row that is the longest of its batch is padded nowhere, so others are alone too. If a run takes minutes, one.
        """
        few = list(chosen)
        yield few[-1:]
        if self.is_slow:
            return
        yield from ([place] for place in few[:-1])
        mixture = [*few, *beside][::-1]
        if thorough:
            most = max(self.size, len(few))
            yield [*few, *beside][:most][::-1] if len(mixture) > 1 and most > 1 else few * 2
        elif len(mixture) > 1:
            yield from (mixture[start : start + self.size] for start in range(0, len(mixture), max(self.size, 1)))

    def _compare_few(self, places: list[int]) -> None:
        """Compare as `_compare`; a row whose output loses the axis of rows alone is compared in a batch of two."""
        try:
            self._compare(places)
        except _LostAxisError:
            self._compare(places * 2)

    def _compare(self, places: Sequence[int]) -> None:
        """Run rows at some places together, and compare their results with those of the first batch."""
        found = self.run({name: pick(column, places) for name, column in self.feeds.items()})
        lost = _LostAxisError if len(places) == 1 else MixedRowsError
        for name, values in found.items():
            if np.ndim(values) == 0 if isinstance(values, np.ndarray) else not isinstance(values, list):
                raise lost(_not_by_row(name, (), len(places)), name)
            if len(values) != len(places):
                raise lost(_not_by_row(name, self.as_given(name, values), len(places)), name)
            if self.agree is None:
                continue
            before = [self.results[name][place] for place in places]
            alike = [self.results[name][place] for place in range(self.first)]
            comparison = _Comparison(*self.agree, largest=_largest([*before, *alike]), is_padded=self._is_text())
            for place, value, expected in zip(places, values, before, strict=True):
                problem = comparison.difference(value, expected)
                if problem is not None:
                    error = self.mixed(name, place, len(places), problem)
                    raise _TieError(error) if comparison.is_tie else error


class _TieError(Exception):
    """Only whole numbers differ; two floats that are almost equal may cause that."""

    def __init__(self, error: MixedRowsError) -> None:
        super().__init__(str(error))
        self._error = error

    def as_error(self) -> MixedRowsError:
        return self._error


class _Comparison(Struct):
    """Compares values of one output, within a tolerance of its largest; `is_tie`: whole numbers were not equal.

    `is_padded`: results by token may be as long as those of the longest text, and what both have is compared.
    """

    rtol: float
    atol: float
    largest: float
    is_padded: bool = False
    is_tie: bool = False

    def difference(self, value: Any, expected: Any) -> str | None:
        """Return what two results of one row differ in; None if they agree."""
        if isinstance(expected, dict):
            if not isinstance(value, dict) or value.keys() != expected.keys():
                return "the map has other keys"
            return self._of_all([value[key] for key in expected], list(expected.values()))
        if isinstance(expected, list):
            return self._of_all(value, expected)
        return self._of_arrays(np.asarray(value), np.asarray(expected))

    def _of_all(self, values: Any, expected: Sequence[Any]) -> str | None:
        if not isinstance(values, list) or len(values) != len(expected):
            return "the list has another length"
        found = (self.difference(*pair) for pair in zip(values, expected, strict=True))
        return next((problem for problem in found if problem is not None), None)

    def _of_arrays(self, value: Array, expected: Array) -> str | None:
        if self.is_padded and value.ndim == expected.ndim:
            both = tuple(map(slice, map(min, value.shape, expected.shape)))
            value, expected = value[both], expected[both]
        if value.shape != expected.shape:
            return f"it is {format_shape(value.shape)} instead of {format_shape(expected.shape)}"
        if np.issubdtype(expected.dtype, np.floating):
            return self._of_floats(value, expected)
        equal = value == expected
        if str(expected.dtype) in _LAST_BIT:
            equal = np.abs(value.astype(np.int64) - expected) <= 1
        share = float(np.mean(equal)) if value.size else 1.0
        if share >= _EQUAL_SHARE:
            return None
        self.is_tie = True
        return (
            f"{share:.0%} of its values are equal" if value.size > 1 else f"{value.item()} instead of {expected.item()}"
        )

    def _of_floats(self, value: Array, expected: Array) -> str | None:
        finite = np.isfinite(expected)
        if (
            not np.array_equal(value[~finite], expected[~finite], equal_nan=True)
            or not np.isfinite(value[finite]).all()
        ):
            return "infinities or NaN are in other places"
        apart = np.abs(value[finite].astype(np.float64) - expected[finite])
        allowed = self.atol + self.rtol * self.largest
        furthest = float(apart.max(initial=0))
        return None if furthest <= allowed else f"by {furthest:.3g}, and {allowed:.3g} is allowed"


def _largest(values: Sequence[Any]) -> float:
    """Return the largest finite magnitude among results, also inside lists and maps."""
    largest = 0.0
    for value in values:
        if isinstance(value, dict | list):
            largest = max(largest, _largest(list(value.values()) if isinstance(value, dict) else value))
            continue
        array = np.asarray(value)
        if np.issubdtype(array.dtype, np.floating):
            largest = max(largest, float(np.abs(array[np.isfinite(array)]).max(initial=0)))
    return largest


def _not_by_row(name: str, shape: tuple[int, ...], rows: int) -> str:
    from ortdeploy.sessions.row_axis_adapter import not_by_row  # noqa: PLC0415  only when something is wrong

    return not_by_row(name, shape, rows)
