"""What an operation of a pipeline is: a module with two functions and no state, like a prepare step on several values.

Values have the rows first: an array, or a list with one array (or list of them) a row where rows differ in shape. A
list of things a row, such as boxes or crops, is one dimension of unknown size behind the rows.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ortdeploy.facts.problems import Package
from ortdeploy.tensors.types import ROWS, InapplicableError, Shape, TensorType
from ortdeploy.transforms.protocol import Options

Array = npt.NDArray[Any]
Column = Array | list[Any]
Types = Mapping[str, TensorType]
Call = Callable[[Mapping[str, Column]], tuple[Column, ...]]
"""Values by argument in, results out; each has the rows first. Raises ValueError for a row that it cannot take."""


class Operation(Protocol):
    """The names that an operation's module has."""

    @property
    def PACKAGE(self) -> Package | None:  # noqa: N802  a module constant
        """The package that it needs, beside the base install."""

    @property
    def TAKES(self) -> Types:  # noqa: N802  a module constant
        """What arguments must be, where that is known beforehand: a pipeline's own inputs are read so."""

    def infer(self, options: Options, types: Types) -> tuple[TensorType, ...]:
        """Return the types of the results, as far as they can be known. Raises InapplicableError."""

    def build(self, options: Options, types: Types) -> Call:
        """Return the function that does it."""


_ARRAYS = (np.ndarray, np.generic)


def as_column(values: Sequence[Any]) -> Column:
    """Return one value a row as an array where all are alike, else as a list."""
    first = values[0] if values else None
    if not isinstance(first, _ARRAYS) or first.dtype == object:
        return list(values)
    shape, dtype = first.shape, first.dtype
    for value in values:
        if not isinstance(value, _ARRAYS) or value.shape != shape or value.dtype != dtype:
            return list(values)
    column = np.empty((len(values), *shape), dtype=dtype)
    for place, value in enumerate(values):  # a third of the time that np.stack takes
        column[place] = value
    return column


def by_row(call: Callable[..., tuple[Any, ...]], results: int, *names: str) -> Call:
    """Return an operation on whole columns from a function on the values of one row."""

    def apply(values: Mapping[str, Column]) -> tuple[Column, ...]:
        rows = [call(*row) for row in zip(*(values[name] for name in names), strict=True)]
        return tuple(as_column([row[index] for row in rows]) for index in range(results))

    return apply


def need_rank(types: Types, name: str, rank: int, what: str) -> Shape | None:
    """Return the shape of an argument, if it is known. Raises InapplicableError where it has another rank."""
    shape = types[name].shape
    if shape is not None and len(shape) != rank:
        raise InapplicableError(f"{name} must be {what} and is {types[name]}")
    return shape


def need_floating(types: Types, name: str) -> None:
    """Refuse an argument that is not known to be, or may not be, floating."""
    dtype = types[name].dtype
    if dtype is not None and not dtype.startswith("float"):
        raise InapplicableError(f"{name} must be floating and is {dtype}")


BOXES = (ROWS, None, 4)
"""Boxes of each row: left, top, right, bottom in pixels."""
IMAGE_RANK = 4
