"""Runs op steps that follow each other: one graph in one session, for all rows of a shape, or a row at a time."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.pipelines.component import Component
from ortdeploy.pipelines.model_step import ModelStep
from ortdeploy.plan.pipeline import PlannedValue, PlannedWireStep
from ortdeploy.sessions.evidence import DisagreementError
from ortdeploy.sessions.opening import OpenedSession
from ortdeploy.sessions.rows_again import MixedRowsError
from ortdeploy.sessions.rows_look import RowsLook
from ortdeploy.tensors.columns import Array, Column, OpRunners
from ortdeploy.tensors.conversion import convert
from ortdeploy.tensors.elements import numpy_dtype


class OpLine:
    """Op steps that follow each other, with their open session."""

    def __init__(self, step: PlannedWireStep, component: Component) -> None:
        self.name, self.by_row = step.name, step.by_row
        self._takes = step.takes
        self._run = ModelStep(step, component)

    @property
    def names_taken(self) -> tuple[str, ...]:
        """The names of the values that it takes."""
        return tuple(value.name for value in self._takes)

    def __call__(self, values: Mapping[str, Column], rows: int) -> dict[str, Column]:
        """Return the results of rows. Raises OrtdeployError."""
        return self._run({value.name: _without_lists(values[value.name], value) for value in self._takes}, rows)


def op_runners(lines: Sequence[PlannedWireStep], opened: Mapping[str, OpenedSession]) -> OpRunners:
    """Return what runs the op steps of prepare and postprocess; it raises ValueError for rows that it cannot take.

    The first rows run again in other batches, to prove that rows do not depend on each other: no other check sees the
    results of these steps.
    """
    return {line.name: _Proven(OpLine(line, Component(line.name, opened[line.name]))) for line in lines}


class _Proven:
    """Op steps whose rows run again in other batches: the first ones, and later ones now and then."""

    def __init__(self, line: OpLine) -> None:
        self._line = line
        self._look = RowsLook(agree=_AGREE, mixed=self._mixed, as_given=lambda _name, column: np.shape(column))

    def __call__(self, values: Mapping[str, Column], rows: int) -> Mapping[str, Column]:
        """Return the results of rows. Raises ValueError, DisagreementError."""
        began = time.perf_counter()
        try:
            found = self._line(values, rows)
            if rows > 1 and not self._line.by_row:
                self._look.look(
                    lambda some: self._line(some, len(next(iter(some.values())))),
                    {name: values[name] for name in self._line.names_taken},
                    found,
                    rows=rows,
                    batch=rows,
                    number=int,
                    seconds=time.perf_counter() - began,
                )
        except DisagreementError:
            raise
        except OrtdeployError as error:
            raise ValueError(str(error)) from error
        return found

    def _mixed(self, name: str, _place: int, size: int, problem: str) -> MixedRowsError:
        beside = "alone" if size == 1 else f"in another batch of {size}"
        return MixedRowsError(
            f"{self._line.name}: the results of a row are others {beside} than in its own batch ({problem}). Op steps "
            "must not depend on how many rows there are; by_row: true runs them for each row by itself",
            name,
        )


_AGREE = 1e-3, 1e-5
"""How much a floating-point number may differ between batches: relative to the largest one, and absolutely."""


def _without_lists(column: Column, value: PlannedValue) -> Column:
    """Return a column with arrays in place of rows that are lists: empty ones, or lists of text."""
    if isinstance(column, np.ndarray):
        return column
    return [_array(row, value) if isinstance(row, list) else row for row in column]


def _array(row: list[Any], value: PlannedValue) -> Array:
    if row:
        return convert(np.array(row, dtype=object), value.dtype or "string")
    dtype = numpy_dtype(value.dtype or "float32")
    sizes = (size if isinstance(size, int) else 0 for size in (value.shape or (None, None))[2:])
    return np.zeros((0, *sizes), dtype)
