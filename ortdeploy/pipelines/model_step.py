"""Runs one model of a pipeline on whole columns: rows of equal shape together, or row by row, every tensor checked."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.feeds.narrowed import NarrowedCheck
from ortdeploy.operations.protocol import as_column
from ortdeploy.pipelines.component import Component
from ortdeploy.plan.pipeline import PlannedValue, PlannedWireStep
from ortdeploy.sessions.row_axis_adapter import not_by_row, of_rows, to_axis, to_front
from ortdeploy.tensors.columns import Array, Column, pick
from ortdeploy.tensors.elements import numpy_dtype
from ortdeploy.tensors.fed_values import as_array
from ortdeploy.tensors.row_axes import to_place
from ortdeploy.tensors.types import format_shape


class ModelStep:
    """A `run` step with its open session."""

    def __init__(self, step: PlannedWireStep, component: Component, whole: frozenset[str] = frozenset()) -> None:
        """Take the step; `whole` are state values without an axis of rows: one row is fed beside them."""
        self._model, self._adapters = step.name, step.adapters
        self._component = component
        self._wires = step.wires
        self._ports = {port.name: _Port(step.name, port) for port in step.takes}
        self._fetch = [port for port, _ in step.outputs]
        self._names = [name for _, name in step.outputs]
        self._size = step.fixed_rows
        self._by_row = step.by_row
        self._state = {argument for argument, name in step.wires if name in whole}
        self._whole = not whole.isdisjoint(name for _, name in (*step.wires, *step.outputs))
        self._gives_state = [name in whole for name in self._names]
        self._axes = step.row_axes
        self._moved_inputs = [(name, axis) for name in self._ports if (axis := step.row_axes.get(name))]
        self._moved_outputs = [
            (place, axis) for place, name in enumerate(self._fetch) if (axis := self._axes.get(name))
        ]
        self._constants = [(one, as_array(one.content, one.dtype, one.shape)) for one in step.constants]
        self._fed_last: tuple[int, dict[str, Array]] = (0, {})
        self._limited = any(port.limits is not None or port.narrowed_by is not None for port in step.takes)

    def __call__(self, values: Mapping[str, Column], rows: int) -> dict[str, Column]:
        """Return the columns that the model makes of these rows, [rows, …] each. Raises OrtdeployError."""
        columns = {port: values[name] for port, name in self._wires}
        if self._by_row:
            found = self._run_row_by_row(columns, rows)
        elif self._whole:
            found = self._run(self._checked({name: np.asarray(column) for name, column in columns.items()}), 1)
        elif list in map(type, columns.values()):
            found = self._run_alike(columns, rows)
        else:
            found = self._run_batches(self._checked(columns), rows) if rows else [as_column([])] * len(self._names)
        return dict(zip(self._names, found, strict=True))

    @property
    def takes(self) -> Sequence[tuple[str, str, int]]:
        """Its inputs, each with the value that it takes, and the axis that is its rows in the graph."""
        return [(port, name, self._axis(port)) for port, name in self._wires]

    @property
    def gives(self) -> Sequence[tuple[str, int]]:
        """The values that a run makes, in its order, each with the axis that is its rows in the graph."""
        return [(name, self._axis(port)) for port, name in zip(self._fetch, self._names, strict=True)]

    def _axis(self, port: str) -> int:
        return 0 if self._whole else self._axes.get(port, 0)

    @property
    def is_known_by_look(self) -> bool:
        """Whether types and shapes alone decide if one row can be fed, and one row can run without others."""
        return not (self._limited or self._by_row or (self._size not in {None, 1} and not self._whole))

    def feeds_of_row(self, values: Mapping[str, Column]) -> dict[str, Array]:
        """Return the feeds of one row as the graph takes them, from values [1, …]. Raises OrtdeployError."""
        feeds = {port: np.asarray(values[name]) for port, name in self._wires}
        self.check(feeds)
        return self._contiguous(feeds if self._whole else self._placed(feeds), 1)

    def run_row(self, feeds: Mapping[str, Array]) -> list[Any]:
        """Return the graph's outputs for the feeds of one row, both with the graph's axes. Raises OrtdeployError.

        Its rows, of which there is one, may be at any axis: [1, …], [time, 1, features], or nowhere.
        """
        return self._component.run(self._fetch, feeds, self._adapters)

    def row_in_front(self, given: Sequence[Any]) -> list[Any]:
        """Return the graph's outputs for one row as [1, …]. Raises OrtdeployError if one has not exactly one row."""
        return list(given) if self._whole else self._in_front(list(given), 1)

    def _run_row_by_row(self, columns: Mapping[str, Column], rows: int) -> Sequence[Any]:
        """Run each row of columns [rows, …] as […]. State has no axis of rows: it goes in and comes out as it is."""
        results: list[list[Any]] = [[] for _ in self._fetch]
        for row in range(rows):
            feeds = {name: column if name in self._state else column[row] for name, column in columns.items()}
            arrays = {name: np.asarray(value) for name, value in feeds.items()}
            self.check({name: one if name in self._state else one[np.newaxis] for name, one in arrays.items()})
            for result, value in zip(results, self._run(arrays, 1), strict=True):
                result.append(value)
        return [
            result[0] if is_state else as_column(result)
            for result, is_state in zip(results, self._gives_state, strict=True)
        ]

    def _run_alike(self, columns: Mapping[str, Column], rows: int) -> Sequence[Column]:
        """Return columns [rows, …]: run all rows together if they have one shape, else those of one shape at a time."""
        results: list[list[Any]] = [[None] * rows for _ in self._fetch]
        for places in _alike(columns, rows):
            feeds = {name: np.asarray(_taken(column, places, rows)) for name, column in columns.items()}
            found = self._run_batches(self._checked(feeds), len(places))
            if len(places) == rows:
                return found
            for result, value in zip(results, found, strict=True):
                for place, row in zip(places, value, strict=True):
                    result[place] = row
        return [as_column(result) for result in results]

    def _run_batches(self, feeds: Mapping[str, Array], rows: int) -> Sequence[Column]:
        """Run feeds [rows, …] in batches of the graph's fixed size, if it has one; the last row fills up the last."""
        size = self._size or rows
        if size == rows:
            return self._run_rows(feeds, rows, rows)
        taken: list[Sequence[Array]] = []
        for begin in range(0, rows, size):
            part = {name: array[begin : begin + size] for name, array in feeds.items()}
            count = min(size, rows - begin)
            if count < size:
                part = {
                    name: np.concatenate([one, np.repeat(one[-1:], size - count, axis=0)]) for name, one in part.items()
                }
            taken.append(self._run_rows(part, size, count))
        return [np.concatenate(pieces) for pieces in zip(*taken, strict=True)]

    def _run_rows(self, feeds: Mapping[str, Array], rows: int, wanted: int) -> list[Any]:
        """Run feeds [rows, …] once, and return the first `wanted` rows of each output, [wanted, …].

        Raises OrtdeployError if a row has no output.
        """
        given = self._in_front(self._run(self._placed(feeds), rows), rows)
        return given if wanted == rows else [value[:wanted] for value in given]

    def _placed(self, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return feeds [rows, …] with their rows at the axis at which the graph has them."""
        placed = dict(feeds)
        for name, axis in self._moved_inputs:
            placed[name] = to_axis(feeds[name], axis)
        return placed

    def _in_front(self, given: list[Any], rows: int) -> list[Any]:
        """Return the outputs of a run as [rows, …]. Raises OrtdeployError if one has another number of rows."""
        for place, axis in self._moved_outputs:
            given[place] = to_front(given[place], axis)
        for place, value in enumerate(given):
            if not value.ndim or len(value) != rows:
                name = self._fetch[place]
                as_given = to_place(value.shape, self._axes.get(name)) if value.ndim else ()
                raise OrtdeployError(f"{self._model}: {not_by_row(name, as_given, rows)}")
        return given

    def _run(self, feeds: Mapping[str, Array], rows: int) -> list[Any]:
        return self._component.run(self._fetch, self._contiguous(feeds, rows), self._adapters)

    def _contiguous(self, feeds: Mapping[str, Array], rows: int) -> dict[str, Array]:
        """Return feeds with the graph's axes as ONNX Runtime takes them, with the constants."""
        contiguous = dict(feeds)
        for name, array in feeds.items():
            if not array.flags.c_contiguous:  # a scalar is contiguous; ascontiguousarray would give it a dimension
                contiguous[name] = np.ascontiguousarray(array)
        if self._constants:
            contiguous |= self._constants_for(rows)
        return contiguous

    def _constants_for(self, rows: int) -> dict[str, Array]:
        """Return the constants of a run. They are kept, because most runs have as many rows as the one before."""
        if self._fed_last[0] != rows:
            self._fed_last = rows, {one.name: of_rows(one, array, rows) for one, array in self._constants}
        return self._fed_last[1]

    def _checked(self, feeds: Mapping[str, Any]) -> Mapping[str, Array]:
        self.check(feeds)
        return feeds

    def check(self, feeds: Mapping[str, Any]) -> None:
        """Check tensors [rows, …] against the inputs. Raises OrtdeployError."""
        for name, array in feeds.items():
            self._ports[name].check(array)


class _Port:
    """One input of a model, as the plan knows it."""

    def __init__(self, model: str, planned: PlannedValue) -> None:
        self._what = f"{model}: input {planned.name}"
        self._row = f"{model}: a row of input {planned.name}"
        self._planned = planned
        self._dtype = None if planned.dtype is None else numpy_dtype(planned.dtype)
        self._sizes = None if planned.shape is None else tuple(planned.shape[1:])
        self._limits = planned.limits
        narrowed = planned.narrowed_by
        self._narrowed = NarrowedCheck(self._what, narrowed) if narrowed else None
        self._held: tuple[Any, tuple[int, ...]] | None = None

    def check(self, array: Array) -> None:
        """Check a tensor [rows, …] against the input: type, shape and limits. Raises OrtdeployError."""
        look = array.dtype, array.shape
        if look != self._held:  # most tensors look like the one before
            self._check_look(array)
            self._held = look
        if self._limits is not None and array.size:
            low, high = float(array.min()), float(array.max())
            if not (low >= self._limits[0] and high <= self._limits[1]):
                first, last = (f"{value:g}" for value in self._limits)
                raise OrtdeployError(f"{self._what} must lie in {first} to {last} and has {low:g} to {high:g}")
        problem = self._narrowed.problem(array) if self._narrowed else None
        if problem:
            raise OrtdeployError(problem)

    def _check_look(self, array: Array) -> None:
        """Check a tensor's type and shape against the input."""
        if self._dtype is not None and array.dtype != self._dtype:
            raise OrtdeployError(f"{self._what} takes {self._planned.dtype} and gets {array.dtype}")
        if self._sizes is not None and not _fits(array.shape[1:], self._sizes):
            have, want = format_shape(array.shape[1:]), format_shape(self._sizes)
            raise OrtdeployError(f"{self._row} takes {want} and gets {have}")


def _fits(sizes: Sequence[int], wanted: Sequence[int | str | None]) -> bool:
    return len(sizes) == len(wanted) and all(
        not isinstance(want, int) or size == want for size, want in zip(sizes, wanted, strict=True)
    )


def _alike(columns: Mapping[str, Column], rows: int) -> list[Sequence[int]]:
    """Return groups of rows, by their places, that have one shape and so can be run together."""
    if not rows:
        return []
    if all(isinstance(column, np.ndarray) for column in columns.values()):
        return [range(rows)]
    groups: dict[tuple[Any, ...], list[int]] = {}
    for row in range(rows):
        groups.setdefault(tuple(np.shape(column[row]) for column in columns.values()), []).append(row)
    return list(groups.values())


def _taken(column: Column, places: Sequence[int], rows: int) -> Column:
    return column if len(places) == rows else pick(column, places)
