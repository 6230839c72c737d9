"""Proves that rows are rows: a job's first rows run again in other batches, and each must give the same result.

This finds a graph that mixes rows (a softmax over the batch, a reshape across it, batch normalization in training mode)
or whose output has its rows on another axis, however it is built. A graph with a fixed batch runs its rows in another
order, beside other rows. A proof is remembered, so it is paid for once.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from ortdeploy.diagnostics import OrtdeployError, OutOfMemoryError, ProviderFailedError, TransientError, as_key
from ortdeploy.files.remembered import TuningCache, choice_key
from ortdeploy.plan.pipeline import PlannedWireStep, walk
from ortdeploy.plan.steps import RunJob
from ortdeploy.records import mutable_record, record
from ortdeploy.tensors.columns import Array, Column, pick
from ortdeploy.tensors.types import format_shape

_FEW = 3  # rows that run together in a batch of another size
_SEARCHED = 64  # rows among which different ones are looked for
_EQUAL_SHARE = 0.9  # of a row's whole numbers: where a float beside them is close, some of many flip
_LAST_BIT = {"int8", "uint8"}  # pixels and quantized numbers, which noise may round to their neighbour

RunRows = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Runs feeds [rows, …] and returns outputs [rows, …], both by name. Raises OrtdeployError."""


class MixedRowsError(OrtdeployError):
    """Results depend on the rows beside them. Names the output and the row, by its place in the batch."""

    def __init__(self, message: str, output: str, place: int | None = None) -> None:
        """Take what is wrong."""
        super().__init__(message)
        self.output = output
        self.place = place

    def with_row(self, row: int) -> OrtdeployError:
        """Return the error with the number that the row has in its job."""
        return OrtdeployError(f"output {self.output}, row {row}: {self}")


_PROVEN = "proven"
"""What stands in the cache for a proof."""


@mutable_record
class ProvenRows:
    """The proofs of a job's sessions, kept in the tuning cache. Threads of several sessions share it."""

    tuning_cache: TuningCache
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def knows(self, key: str) -> bool:
        """Return whether a session has given the same rows the same results before."""
        with self._turn:
            return bool(self.tuning_cache.find(key) == _PROVEN)

    def keep(self, key: str) -> None:
        """Remember a proof."""
        with self._turn:
            self.tuning_cache.find(key)  # what other processes have kept meanwhile is not lost
            self.tuning_cache.keep(key, _PROVEN)


@record
class RowsAgain:
    """Runs rows of a batch again, in other batches, and compares what they give with what they gave.

    `feeds` and `results` are [rows, …]; padding rows may follow the batch's own. `agree` are a relative and an absolute
    tolerance; None: only the numbers of rows are compared. `mixed` makes the error for an output that differs: of its
    name, the row's place, the size of the other batch, the rows of the first one, and in what. `as_given` is the shape
    of an output in its graph.
    """

    run: RunRows
    feeds: Mapping[str, Column]
    results: Mapping[str, Any]
    rows: int
    agree: tuple[float, float] | None
    mixed: Callable[[str, int, int, int, str], MixedRowsError]
    as_given: Callable[[str, Any], tuple[int, ...]]
    takes_whole_batches: bool = False
    is_slow: bool = False

    def prove(self) -> bool:
        """Compare some rows, and return whether they can have shown a difference: whether they differ, texts in length.

        If only whole numbers differ, which may be a tie, other rows decide. Raises MixedRowsError, OrtdeployError.
        """
        different = _different(self.feeds, self.rows)
        try:
            self._compare_batches(sorted(different[:_FEW]) or [0])
        except _TieError as tie:
            others = sorted(different[_FEW : 2 * _FEW])
            if len(others) < 2:  # noqa: PLR2004  rows beside each other
                raise tie.as_error() from None
            try:
                self._compare_batches(others)
            except _TieError as again:
                raise again.as_error() from None
        return len(different) > 1 and all(_differ_in_length(column, different) for column in self._texts())

    def _texts(self) -> list[Column]:
        """Return the columns whose rows may be padded to the longest of their batch."""
        return [column for column in self.feeds.values() if np.asarray(column[0]).dtype.kind in "OUS"]

    def _compare_batches(self, chosen: Sequence[int]) -> None:
        if not self.takes_whole_batches:
            try:
                for places in self._sizes(chosen):
                    self._compare(places)
            except (ProviderFailedError, MixedRowsError, TransientError, OutOfMemoryError):
                raise
            except OrtdeployError:  # the graph takes the job's number of rows and no other
                pass
            else:
                return
        size = len(next(iter(self.feeds.values())))
        later = list(range(self.rows // 2, self.rows))[::-1]
        self._compare([later[place % len(later)] for place in range(size)])

    def _sizes(self, chosen: Sequence[int]) -> Iterator[list[int]]:
        """Yield the rows of batches to compare with: each alone, and all in another order.

        A row that is the longest of its batch is padded nowhere, so others are alone too. If a run takes minutes, one.
        """
        few = list(chosen) if len(chosen) > 1 else [0, 1]
        yield few[-1:]
        if not self.is_slow:
            yield from ([place] for place in few[:-1])
            yield few[::-1]

    def _compare(self, places: Sequence[int]) -> None:
        """Run rows at some places together, and compare their results with those of the first batch."""
        found = self.run({name: pick(column, places) for name, column in self.feeds.items()})
        for name, values in found.items():
            if np.ndim(values) == 0 if isinstance(values, np.ndarray) else not isinstance(values, list):
                raise MixedRowsError(_not_by_row(name, (), len(places)), name)
            if len(values) != len(places):
                raise MixedRowsError(_not_by_row(name, self.as_given(name, values), len(places)), name)
            if self.agree is None:
                continue
            before = [self.results[name][place] for place in places]
            comparison = _Comparison(*self.agree, largest=_largest(before), is_padded=bool(self._texts()))
            for place, value, expected in zip(places, values, before, strict=True):
                problem = comparison.difference(value, expected)
                if problem is not None:
                    error = self.mixed(name, place, len(places), self.rows, problem)
                    raise _TieError(error) if comparison.is_tie else error


class RowProof:
    """Proves for one session, with each set of adapters, that its rows do not depend on each other.

    `holds_for` is what the proof depends on apart from the job: the session with its options, digests and versions.
    """

    def __init__(self, step: RunJob, proven: ProvenRows, holds_for: Any) -> None:
        """Take what is known already."""
        self._step = step
        self._check = step.row_check
        self._proven = proven
        self._holds_for = holds_for
        self._done: set[tuple[str, ...]] = set()

    def wants(self, adapters: tuple[str, ...], rows: int) -> bool:
        """Return whether a batch of this number of rows can prove something that is not proven yet."""
        return rows > 1 and self._check.counts and adapters not in self._done

    def prove(
        self, run: RunRows, feeds: Mapping[str, Array], results: Mapping[str, Any], rows: int, adapters: tuple[str, ...]
    ) -> None:
        """Run some rows of a batch again, beside other rows, and compare. Raises MixedRowsError, ProviderFailedError.

        `feeds` and `results` are [rows, …]; padding rows may follow the batch's own.
        """
        key = self._key(feeds, adapters)
        if self._proven.knows(key):
            self._done.add(adapters)
            return
        pipeline = self._step.pipeline
        again = RowsAgain(
            run=run,
            feeds=feeds,
            results=results,
            rows=rows,
            agree=self._check.agree,
            mixed=self._mixed,
            as_given=self._as_given,
            takes_whole_batches=self._step.batching.pad_to is not None,
            is_slow=pipeline is not None and pipeline.preset is not None,
        )
        try:
            have_differed = again.prove()
        except (ProviderFailedError, MixedRowsError):
            raise
        except (TransientError, OutOfMemoryError, MemoryError):
            return  # the next batch proves it
        self._done.add(adapters)
        if have_differed and self._check.agree is not None:
            self._proven.keep(key)

    def _as_given(self, name: str, values: Any) -> tuple[int, ...]:
        """Return the shape of an output as the graph has it."""
        from ortdeploy.tensors.row_axes import to_place  # noqa: PLC0415  only when something is wrong

        shape = values.shape if isinstance(values, np.ndarray) else (len(values),)
        return to_place(shape, self._step.row_axes.get(name))

    def _mixed(self, name: str, place: int, size: int, rows: int, problem: str) -> MixedRowsError:
        beside = "alone" if size == 1 else f"in another batch of {size}"
        where, alone = (
            f"outputs: {{{as_key(name)}: {{row_axis: AXIS}}}} of model {self._step.model}",
            "{size: 1} or none,",
        )
        if self._step.pipeline is not None:
            where, alone = "row_axis: AXIS, under inputs or outputs of its model", "{size: 1},"
        return MixedRowsError(
            f"its results depend on the rows beside it. They are others {beside} than in the first batch of {rows} "
            f"({problem}). If another axis counts rows, say which: {where}. Batches of one, batch: {alone} have "
            "nothing beside a row. If it is on purpose (stateful, random, dynamically quantised), write "
            f"row_independence: {{rtol: …}}, or false{self._of_a_pipeline()}",
            name,
            place,
        )

    def _of_a_pipeline(self) -> str:
        """Return where a pipeline says so, and what else helps where its steps are operators, or fill texts up."""
        pipeline = self._step.pipeline
        if pipeline is None:
            return ""
        steps = list(walk(pipeline.steps))
        said = ", at the model"
        if any(step.kind == "op" for step in steps):
            said += ". An op step that works across rows takes by_row: true"
        if any(map(_fills_up, steps)):
            said += ". tokenize fills texts up to the longest of their batch: padding: none fills none of them"
        return said

    def _key(self, feeds: Mapping[str, Array], adapters: tuple[str, ...]) -> str:
        """Return what a proof holds for."""
        step = self._step
        shapes = sorted([name, str(array.dtype), *array.shape[1:]] for name, array in feeds.items())
        constants = (*step.values, *(step.pipeline.constants if step.pipeline else ()))
        values = [[one.name, json.dumps(one.content), one.row_axis] for one in constants]
        sizes = [step.batching.size, step.batching.pad_to, self._check.agree]
        return choice_key(
            "rows", self._holds_for, list(adapters), shapes, sorted(step.row_axes.items()), values, step.fetch, sizes
        )


def _fills_up(step: PlannedWireStep) -> bool:
    """Return whether a step fills rows up to the longest of their batch."""
    fills = step.options.get("padding") != "none" and "length" not in step.options
    return step.kind == "do" and step.name == "tokenize" and fills


class _TieError(Exception):
    """Only whole numbers differ; two floats that are almost equal may cause that."""

    def __init__(self, error: MixedRowsError) -> None:
        super().__init__(str(error))
        self._error = error

    def as_error(self) -> MixedRowsError:
        return self._error


@mutable_record
class _Comparison:
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


def _different(feeds: Mapping[str, Column], rows: int) -> list[int]:
    """Return the places of rows that differ from each other, as many as are needed.

    They are from all over the batch: a graph may mix rows only with those that are far before them.
    """
    seen: dict[tuple[Any, ...], int] = {}
    spread = dict.fromkeys((0, rows - 1, rows // 2, *range(1, rows, max(1, rows // _SEARCHED))))
    for row in list(spread)[:_SEARCHED]:
        seen.setdefault(tuple(_content(array[row]) for array in feeds.values()), row)
        if len(seen) == 2 * _FEW:
            break
    return list(seen.values())


def _differ_in_length(column: Column, places: Sequence[int]) -> bool:
    """Return whether texts differ in length: a batch of equal ones is padded nowhere."""
    return len({len(str(column[place])) for place in places}) > 1


def _content(row: Any) -> Any:
    array = np.asarray(row)
    return repr(array.tolist()) if array.dtype == object else array.tobytes()


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
    from ortdeploy.sessions.rows_first import not_by_row  # noqa: PLC0415  only when something is wrong

    return not_by_row(name, shape, rows)
