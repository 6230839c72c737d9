"""Runs op steps in a line: one graph in one session, for all rows of equal shape, or for one row at a time."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.operations.protocol import as_column
from ortdeploy.pipelines.component import Component
from ortdeploy.pipelines.model_step import ModelStep
from ortdeploy.plan.pipeline import PlannedValue, PlannedWireStep
from ortdeploy.sessions.opening import OpenedSession
from ortdeploy.sessions.row_proof import MixedRowsError
from ortdeploy.tensors.columns import Array, Column, OpRunners
from ortdeploy.tensors.elements import numpy_dtype


class OpLine:
    """The session of op steps, and how rows are fed to it."""

    def __init__(self, step: PlannedWireStep, component: Component) -> None:
        """Take the step and its open session."""
        self.name, self.by_row = step.name, step.by_row
        self._takes = step.takes
        self._names = [name for name, _ in step.outputs]
        self._component = component
        self._of_all = ModelStep(step, component, whole=False)

    def __call__(self, values: Mapping[str, Column], rows: int) -> dict[str, Column]:
        """Return the results of rows. Raises OrtdeployError."""
        columns = {value.name: _without_lists(values[value.name], value) for value in self._takes}
        if not self.by_row:
            return self._of_all(columns, rows)
        found = [self._run({name: column[row] for name, column in columns.items()}) for row in range(rows)]
        return {name: as_column([row[index] for row in found]) for index, name in enumerate(self._names)}

    def _run(self, row: Mapping[str, Any]) -> list[Array]:
        """Run one row, without the rows' axis."""
        feeds = {name: np.asarray(value, order="C") for name, value in row.items()}
        self._of_all.check({name: array[np.newaxis] for name, array in feeds.items()})
        return list(self._component.run(self._names, feeds, ()))


def op_runners(lines: Sequence[PlannedWireStep], opened: Mapping[str, OpenedSession]) -> OpRunners:
    """Return what runs op steps of prepare and postprocess; it raises ValueError for rows that it cannot take.

    The first rows prove that they are rows: nothing else compares what becomes of them here.
    """
    return {line.name: _Proven(OpLine(line, Component(line.name, opened[line.name]))) for line in lines}


class _Proven:
    """Op steps whose first rows run once more, one of them alone."""

    def __init__(self, line: OpLine) -> None:
        self._line = line
        self._is_proven = line.by_row

    def __call__(self, values: Mapping[str, Column], rows: int) -> Mapping[str, Column]:
        """Return the results of rows. Raises ValueError, MixedRowsError."""
        try:
            found = self._line(values, rows)
            if not self._is_proven and rows > 1:
                self._prove(values, rows, found)
        except MixedRowsError:
            raise
        except OrtdeployError as error:
            raise ValueError(str(error)) from error
        return found

    def _prove(self, values: Mapping[str, Column], rows: int, found: Mapping[str, Column]) -> None:
        alone = self._line({name: column[rows - 1 :] for name, column in values.items()}, 1)
        for name, column in alone.items():
            if not _agree(np.asarray(column[0]), np.asarray(found[name][rows - 1])):
                raise MixedRowsError(
                    f"{self._line.name}: the results of a row are others alone than beside {rows - 1} other rows. Op "
                    "steps must not depend on how many rows there are; by_row: true runs them for each row by itself",
                    name,
                )
        self._is_proven = True


def _agree(alone: Array, together: Array) -> bool:
    if alone.shape != together.shape:
        return False
    if not np.issubdtype(alone.dtype, np.floating):
        return bool(np.array_equal(alone, together))
    largest = float(np.abs(together[np.isfinite(together)]).max(initial=0))
    return bool(np.allclose(alone, together, rtol=0, atol=_ATOL + _RTOL * largest, equal_nan=True))


_RTOL, _ATOL = 1e-3, 1e-5
"""How much a floating number may differ between batches of different sizes, relative to the largest one of the row."""


def _without_lists(column: Column, value: PlannedValue) -> Column:
    """Return a column whose rows that list nothing, or text, are arrays."""
    if isinstance(column, np.ndarray):
        return column
    return [_array(row, value) if isinstance(row, list) else row for row in column]


def _array(row: list[Any], value: PlannedValue) -> Array:
    dtype = numpy_dtype(value.dtype or "float32")
    if row:
        return np.asarray(row, dtype=dtype)
    sizes = (size if isinstance(size, int) else 0 for size in (value.shape or (None, None))[2:])
    return np.zeros((0, *sizes), dtype)
