"""Runs the steps of a pipeline as if they were one session: rows go through its models and operations.

Whatever treats a session's rows (batches, splitting for a bad row, parts, the ledger) treats a pipeline's.
"""

import base64
import io
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.element_types import numpy_dtype
from ortdeploy.operations.catalogue import OPERATIONS
from ortdeploy.operations.protocol import Call, Column, as_column
from ortdeploy.pipelines.component import Component, ComposedSession, check_port
from ortdeploy.planned_pipeline import PlannedPipeline, PlannedValue, PlannedWireStep, walk
from ortdeploy.runtime.protocol import Array
from ortdeploy.sources.protocol import join, pick
from ortdeploy.tensors import format_shape

Values = dict[str, Column]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a row hands on to the next, and what the rows belong to."""

    values: Mapping[str, Array]
    key: tuple[str, ...] = ()


def pack_state(state: State) -> str:
    """Return a state as text, for the ledger."""
    file = io.BytesIO()
    arrays: dict[str, Any] = {f"value:{name}": array for name, array in state.values.items()}
    np.savez(file, **arrays, key=np.array(state.key, dtype=str))
    return base64.b64encode(file.getvalue()).decode("ascii")


def unpack_state(text: str) -> State:
    """Return the state of a text that `pack_state` has made. Raises ValueError for another text."""
    try:
        with np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False) as arrays:
            values = {name.removeprefix("value:"): arrays[name] for name in arrays.files if name != "key"}
            return State(values=values, key=tuple(str(one) for one in arrays["key"]))
    except Exception as error:  # whatever zipfile and numpy trip over
        raise ValueError(f"no state of a row: {error}") from error


def _zeros(value: PlannedValue) -> Array:
    """Return the state of a first row: zeros, one of each open dimension."""
    sizes = [size if isinstance(size, int) else 1 for size in value.shape or ()]
    return np.zeros(sizes, numpy_dtype(value.dtype or "float32"))


@dataclass(frozen=True, slots=True)
class _Step:
    """A planned step with the function that does it."""

    planned: PlannedWireStep
    apply: Callable[[Values, int], Values]


class StepsSession(ComposedSession):
    """One way through the steps of a pipeline; it is used by one thread at a time."""

    def __init__(self, pipeline: PlannedPipeline, components: Mapping[str, Component]) -> None:
        """Build every operation once. Raises OrtdeployError where one cannot be built."""
        super().__init__(components)
        self._outputs = dict(pipeline.outputs)
        self._steps = [self._build(step) for step in pipeline.steps]
        self._readers = _last_readers(pipeline)
        self._handed_on = dict(pipeline.state)
        self._whole = {*self._handed_on, *self._handed_on.values()}
        self._first = {value.name: _zeros(value) for value in pipeline.first_state}
        self.state = State(values=self._first)
        self._before = self.state

    def begin(self, key: tuple[str, ...]) -> None:
        """Begin with zeros where the rows belong to something else than those before."""
        if key != self.state.key:
            self.state = State(values=self._first, key=key)

    def undo(self) -> None:
        """Take the state back to before the last run."""
        self.state = self._before

    def run(self, outputs: Sequence[str], feeds: Mapping[str, Array], adapters: Sequence[str]) -> Sequence[Any]:
        """Take rows through all steps and return the named outputs, each with the rows first. Raises OrtdeployError."""
        if adapters:
            raise TypeError("adapters of a pipeline belong to its steps")
        if not self._handed_on:
            values = self._run_rows(dict(feeds), len(next(iter(feeds.values()))))
            return [values[self._outputs[name]] for name in outputs]
        return self._run_in_turn(outputs, feeds)

    def _run_in_turn(self, outputs: Sequence[str], feeds: Mapping[str, Array]) -> Sequence[Any]:
        """Take rows through one after the other; each hands its state on. Where one fails, none of them has."""
        self._before = self.state
        rows: list[list[Any]] = []
        try:
            for row in range(len(next(iter(feeds.values())))):
                cut = {name: array[row : row + 1] for name, array in feeds.items()}
                values = self._run_rows({**cut, **self.state.values}, 1)
                kept = {name: np.asarray(values[source]) for name, source in self._handed_on.items()}
                self.state = State(values=kept, key=self.state.key)
                rows.append([values[self._outputs[name]][0] for name in outputs])
        except (OrtdeployError, MemoryError):
            self.undo()
            raise
        return [as_column([row[index] for row in rows]) for index in range(len(outputs))]

    def _run_rows(self, values: Values, rows: int) -> Values:
        for index, step in enumerate(self._steps):
            values |= step.apply(values, rows)
            for name in [name for name in values if self._readers.get(name, -1) <= index]:
                del values[name]  # memory is flat in the number of steps
        return values

    def _build(self, step: PlannedWireStep) -> _Step:
        if step.kind == "run":
            return _Step(step, lambda values, rows: self._run_model(step, values, rows))
        if step.kind == "do":
            return _Step(step, _operation(step))
        inner, read = [self._build(one) for one in step.steps], _names_read(step.steps)
        return _Step(step, lambda values, _rows: self._run_each(step, inner, read, values))

    def _run_model(self, step: PlannedWireStep, values: Values, rows: int) -> Values:
        """Run a model on all rows: together where they are alike, else those of one shape at a time."""
        ports = {port.name: port for port in step.takes}
        columns = {port: values[name] for port, name in step.wires}
        fetch = [port for port, _ in step.outputs]
        if self._whole.intersection(name for _, name in (*step.wires, *step.outputs)):
            return self._run_whole(step, ports, columns)
        results: list[list[Any]] = [[None] * rows for _ in fetch]
        for places in _alike(columns, rows):
            feeds = {name: np.asarray(_taken(column, places, rows)) for name, column in columns.items()}
            for name, array in feeds.items():
                check_port(step.name, ports[name], array)
            found = self._run_batches(step, fetch, feeds, len(places))
            if len(places) == rows:
                return {name: value for (_, name), value in zip(step.outputs, found, strict=True)}
            for result, value in zip(results, found, strict=True):
                for place, row in zip(places, value, strict=True):
                    result[place] = row
        return {name: as_column(result) for (_, name), result in zip(step.outputs, results, strict=True)}

    def _run_whole(
        self, step: PlannedWireStep, ports: Mapping[str, PlannedValue], columns: Mapping[str, Column]
    ) -> Values:
        """Run a model on one row and its state, which has no rows of its own."""
        feeds = {name: np.ascontiguousarray(column) for name, column in columns.items()}
        for name, array in feeds.items():
            check_port(step.name, ports[name], array)
        fetch = [port for port, _ in step.outputs]
        found = self.components[step.name].run(fetch, feeds, step.adapters)
        return {name: value for (_, name), value in zip(step.outputs, found, strict=True)}

    def _run_batches(
        self, step: PlannedWireStep, fetch: Sequence[str], feeds: Mapping[str, Array], rows: int
    ) -> list[Array]:
        """Run in batches of the graph's own size where it has one; the last one is filled up with its last row."""
        component = self.components[step.name]
        size = _fixed_rows(step.takes) or rows
        taken: list[Sequence[Any]] = []
        for begin in range(0, rows, size):
            part = {name: array[begin : begin + size] for name, array in feeds.items()}
            count = min(size, rows - begin)
            if count < size:
                part = {
                    name: np.concatenate([one, np.repeat(one[-1:], size - count, axis=0)]) for name, one in part.items()
                }
            contiguous = {name: np.ascontiguousarray(one) for name, one in part.items()}
            found = component.run(fetch, contiguous, step.adapters)
            taken.append(
                [_rows_of(step.name, name, value, size)[:count] for name, value in zip(fetch, found, strict=True)]
            )
        return [np.concatenate(pieces) if len(pieces) > 1 else pieces[0] for pieces in zip(*taken, strict=True)]

    def _run_each(self, step: PlannedWireStep, inner: Sequence[_Step], read: Collection[str], values: Values) -> Values:
        """Take the items of all rows through the inner steps, and list what they gave by row again."""
        listed = values[step.name]
        counts = [len(row) for row in listed]
        if step.most is not None and max(counts, default=0) > step.most:
            raise OrtdeployError(f"${step.name} lists {max(counts)} items, and each may have {step.most} (max)")
        items = [item for row in listed for item in row]
        owners = [row for row, count in enumerate(counts) for _ in range(count)]
        collected: dict[str, list[Column]] = {inside: [] for inside, _ in step.outputs}
        for begin in range(0, len(items), step.batch):
            some, owner = items[begin : begin + step.batch], owners[begin : begin + step.batch]
            inside: Values = {name: pick(values[name], owner) for name in read if name in values}
            inside[step.item] = as_column([item if isinstance(item, np.ndarray) else _item(item) for item in some])
            for one in inner:
                inside |= one.apply(inside, len(some))
            for name, result in collected.items():
                result.append(inside[name])
        types = {value.name: value for value in step.makes}
        return {
            name: as_column(_by_row(join(collected[inside_name]), counts, types[name]))
            for inside_name, name in step.outputs
        }


def _operation(step: PlannedWireStep) -> Callable[[Values, int], Values]:
    types = {value.name: value.tensor for value in step.takes}
    names = [name for _, name in step.outputs]
    try:
        call: Call = OPERATIONS[step.name].build(step.options, types)
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise OrtdeployError(f"{step.name}: {error}") from error

    def apply(values: Values, _rows: int) -> Values:
        try:
            found = call({argument: values[name] for argument, name in step.wires})
        except (ValueError, IndexError, ArithmeticError, TypeError) as error:
            raise OrtdeployError(f"{step.name}: {error}") from error
        return dict(zip(names, found, strict=False))

    return apply


def _names_read(steps: Sequence[PlannedWireStep]) -> set[str]:
    """Return the values that steps read, those inside of others too."""
    found = {name for step in walk(steps) for _, name in step.wires}
    return found | {step.name for step in walk(steps) if step.kind == "each"}


def _last_readers(pipeline: PlannedPipeline) -> dict[str, float]:
    """Return the place of the last step that reads each value; outputs are read after all of them."""
    last: dict[str, float] = {}
    for index, step in enumerate(pipeline.steps):
        for one in walk([step]):
            names = [name for _, name in one.wires] + ([one.name] if one.kind == "each" else [])
            last.update(dict.fromkeys(names, index))
    return last | dict.fromkeys((value for _, value in (*pipeline.outputs, *pipeline.state)), math.inf)


def _alike(columns: Mapping[str, Column], rows: int) -> list[Sequence[int]]:
    """Return the places of rows that can be run together, in order; none where there are no rows."""
    if not rows:
        return []
    if all(isinstance(column, np.ndarray) for column in columns.values()):
        return [range(rows)]
    groups: dict[tuple[Any, ...], list[int]] = {}
    for row in range(rows):
        groups.setdefault(tuple(np.shape(column[row]) for column in columns.values()), []).append(row)
    return list(groups.values())


def _taken(column: Column, places: Sequence[int], rows: int) -> Column:
    if len(places) == rows:
        return column
    return pick(column, places)


def _fixed_rows(ports: Sequence[PlannedValue]) -> int | None:
    """Return the number of rows that a graph takes, where it has written one down."""
    sizes = [port.shape[0] for port in ports if port.shape and isinstance(port.shape[0], int)]
    return int(sizes[0]) if sizes else None


def _rows_of(model: str, name: str, value: Any, rows: int) -> Any:
    if np.ndim(value) == 0 or len(value) != rows:
        raise OrtdeployError(f"{model}: output {name} is {format_shape(np.shape(value))} for {rows} rows")
    return value


def _item(item: Any) -> Any:
    """Return an item of a list; a number as an array of rank 0."""
    return np.asarray(item) if np.isscalar(item) else item


def _by_row(items: Column, counts: Sequence[int], kind: PlannedValue) -> list[Any]:
    """List the results of items by row again: arrays where they are alike, empty ones of the right shape for none."""
    rows: list[Any] = []
    begin = 0
    for count in counts:
        some = items[begin : begin + count]
        rows.append((some if isinstance(some, np.ndarray) else as_column(some)) if count else _nothing(kind))
        begin += count
    return rows


def _nothing(kind: PlannedValue) -> Any:
    """Return an empty list of items of a type."""
    if kind.dtype in {None, "string"} or kind.shape is None:
        return []
    return np.zeros(
        (0, *(size if isinstance(size, int) else 0 for size in kind.shape[2:])), numpy_dtype(kind.dtype or "")
    )
