"""Runs the steps of an `each` for every item of the rows' lists, and returns the results as one list a row.

Items without state are independent, so the items of all rows run together in batches. Items with state pass it on
within their row, so they run one after the other; several rows run side by side if the model tells which axis of the
state counts rows, else one row at a time. Either way, memory between the steps is that of a batch, however long a row's
list is. If memory runs out, later batches of items without state are half as large.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ortdeploy.diagnostics import OrtdeployError, OutOfMemoryError
from ortdeploy.events import log
from ortdeploy.operations.protocol import as_column
from ortdeploy.pipelines.items_in_turn import items_in_turn
from ortdeploy.plan.pipeline import PlannedValue, PlannedWireStep, walk
from ortdeploy.tensors.columns import Array, Column, join, pick
from ortdeploy.tensors.elements import numpy_dtype

Values = dict[str, Column]
Apply = Callable[[Values, int], Values]
"""A step: takes the values so far and the number of rows, and returns the values that it makes."""

Segment = tuple[int, int, int]
"""Some items of one row: the row's place, the first item, and the one after the last."""


class Each:
    """An `each` step with its inner steps."""

    def __init__(self, step: PlannedWireStep, inner: Sequence[Apply]) -> None:
        self._step = step
        self._inner = inner
        self._read = _names_read(step.steps).union(name for name, _ in step.outputs)
        self._types = {value.name: value for value in step.makes}
        self._collected = tuple(name for name, _ in step.outputs)
        self._run = self._run_in_turn if step.state else self._run_batches
        self._together = step.batch
        self._in_turn = items_in_turn(step, inner)
        self.halvings = 0

    def __call__(self, values: Values, _rows: int) -> Values:
        """Run the items of all rows through the inner steps. Raises OrtdeployError."""
        listed = values[self._step.name]
        counts = [len(row) for row in listed]
        self._check_most(counts)
        found = self._run(values, listed, counts)
        return {name: as_column(found[inside]) for inside, name in self._step.outputs}

    def _check_most(self, counts: Sequence[int]) -> None:
        most = self._step.most
        if most is not None and max(counts, default=0) > most:
            name = self._step.name
            raise OrtdeployError(f"${name} lists {max(counts)} items, and each may have {most} (max)")

    def _nothing(self, inside: str) -> Any:
        return nothing_of(self._types[dict(self._step.outputs)[inside]])

    def _run_batches(self, values: Values, listed: Column, counts: Sequence[int]) -> dict[str, list[Any]]:
        """Run the items of all rows together, in batches."""
        collected: dict[str, list[Column]] = {name: [] for name in self._collected}
        for segments in _batches(counts, self._together):
            for found in self._run_or_halve(values, listed, segments):
                for name, results in collected.items():
                    results.append(found[name])
        return {name: self._by_row(name, join(results), counts) for name, results in collected.items()}

    def _run_or_halve(self, values: Values, listed: Column, segments: Sequence[Segment]) -> Iterator[Values]:
        """Yield the results of some items; if memory runs out, run half as many at a time from here on."""
        items = sum(end - begin for _, begin, end in segments)
        if items <= self._together:
            try:
                found = self._run_together(values, listed, segments)
            except (OutOfMemoryError, MemoryError):
                if items == 1:
                    raise
                self._together = -(-items // 2)
                self.halvings += 1
                log.warning("batch.items_halved", each=self._step.name, items=self._together, before=items)
            else:
                yield found
                return
        for some in _cut(segments, self._together):
            yield from self._run_or_halve(values, listed, some)

    def _run_together(self, values: Values, listed: Column, segments: Sequence[Segment]) -> Values:
        owners = [row for row, begin, end in segments for _ in range(end - begin)]
        inside = self._outer(values, owners)
        inside[self._step.item] = _items(listed, segments)
        for one in self._inner:
            inside |= one(inside, len(owners))
        return inside

    def _outer(self, values: Values, owners: Sequence[int]) -> Values:
        """Return the rows' values that the inner steps read, repeated for each item; `owners` are the items' rows."""
        return {name: pick(values[name], owners) for name in self._read if name in values}

    def _by_row(self, name: str, items: Column, counts: Sequence[int]) -> list[Any]:
        """Return the results of items as one list a row: an array if they are alike, an empty one for no items."""
        rows: list[Any] = []
        begin = 0
        for count in counts:
            some = items[begin : begin + count]
            rows.append((some if isinstance(some, np.ndarray) else as_column(some)) if count else self._nothing(name))
            begin += count
        return rows

    def _run_in_turn(self, values: Values, listed: Column, counts: Sequence[int]) -> dict[str, list[Any]]:
        """Run the items of each row one after the other, each with the state of the one before."""
        found: dict[str, list[Any]] = {name: [None] * len(counts) for name in self._collected}
        longest = sorted(range(len(counts)), key=counts.__getitem__, reverse=True)  # rows with items left stay in front
        beside = self._step.batch if self._step.state_by_row else 1
        for begin in range(0, len(longest), beside):
            rows = longest[begin : begin + beside]
            for name, results in self._run_rows(values, listed, rows, [counts[row] for row in rows]).items():
                for row, result in zip(rows, results, strict=True):
                    found[name][row] = result
        return found

    def _run_rows(
        self, values: Values, listed: Column, rows: Sequence[int], counts: Sequence[int]
    ) -> dict[str, list[Any]]:
        """Run the items of some rows side by side; the rows with the most items come first."""
        items = listed[rows[0]]
        if self._in_turn is not None and len(rows) == 1 and self._in_turn.may_run(items):
            collected = self._in_turn.run(self._outer(values, rows), items, self._first_state(1))
            return {name: [join(of_items)] for name, of_items in collected.items()}
        given: dict[str, list[Column]] = {name: [] for name in self._collected}
        state = self._first_state(len(rows))
        going, outer = len(rows), self._outer(values, rows)
        for place in range(counts[0]):
            if counts[going - 1] <= place:
                going = sum(count > place for count in counts)
                outer, state = self._outer(values, rows[:going]), {name: one[:going] for name, one in state.items()}
            items = _items(listed, [(row, place, place + 1) for row in rows[:going]])
            inside = {**outer, **state, self._step.item: items}
            for one in self._inner:
                inside |= one(inside, going)
            state = {name: inside[source] for name, source in self._step.state}
            for name, results in given.items():
                results.append(inside[name])
        return {name: self._by_place(name, results, counts) for name, results in given.items()}

    def _first_state(self, rows: int) -> Values:
        by_row = rows if self._step.state_by_row else None
        return {one.name: first_state(one, by_row) for one in self._step.first_state}

    def _by_place(self, name: str, results: Sequence[Column], counts: Sequence[int]) -> list[Any]:
        """Return results that were collected item by item, of all rows at once, as one list a row."""
        if len(counts) == 1 and counts[0]:
            return [join(results)]
        return [
            join([result[row : row + 1] for result in results[:count]]) if count else self._nothing(name)
            for row, count in enumerate(counts)
        ]


def first_state(value: PlannedValue, rows: int | None = None) -> Array:
    """Return zeros of a state's shape: [rows, …], or without `rows` the state as the model takes it as a whole.

    Open dimensions get the size 1.
    """
    sizes = [size if isinstance(size, int) else 1 for size in value.shape or ()]
    return np.zeros(sizes if rows is None else [rows, *sizes[1:]], numpy_dtype(value.dtype or "float32"))


def _batches(counts: Sequence[int], size: int) -> Iterator[list[Segment]]:
    """Yield the items of all rows in batches of a size, in their order."""
    return _cut([(row, 0, count) for row, count in enumerate(counts)], size)


def _cut(segments: Sequence[Segment], size: int) -> Iterator[list[Segment]]:
    """Yield some items in batches of a size, in their order."""
    batch: list[Segment] = []
    room = size
    for row, first, last in segments:
        begin = first
        while begin < last:
            end = min(last, begin + room)
            batch.append((row, begin, end))
            room -= end - begin
            begin = end
            if not room:
                yield batch
                batch, room = [], size
    if batch:
        yield batch


def _items(listed: Column, segments: Sequence[Segment]) -> Column:
    """Return some items of rows as a column; those of one row are a view of it."""
    pieces = [listed[row][begin:end] for row, begin, end in segments]
    if len(pieces) == 1 and isinstance(pieces[0], np.ndarray):
        return pieces[0]
    looks = {(piece.shape[1:], piece.dtype) if isinstance(piece, np.ndarray) else None for piece in pieces}
    if len(looks) == 1 and None not in looks:
        return np.concatenate(pieces)
    return as_column([item if isinstance(item, np.ndarray) else _item(item) for piece in pieces for item in piece])


def _item(item: Any) -> Any:
    """Return an item of a list; a number as an array of rank 0."""
    return np.asarray(item) if np.isscalar(item) else item


def _names_read(steps: Sequence[PlannedWireStep]) -> set[str]:
    """Return the values that steps read, and those that steps inside them read."""
    found = {name for step in walk(steps) for _, name in step.wires}
    return found | {step.name for step in walk(steps) if step.kind == "each"}


def nothing_of(kind: PlannedValue) -> Any:
    """Return an empty list of items of a type."""
    if kind.dtype in {None, "string"} or kind.shape is None:
        return []
    return np.zeros(
        (0, *(size if isinstance(size, int) else 0 for size in kind.shape[2:])), numpy_dtype(kind.dtype or "")
    )
