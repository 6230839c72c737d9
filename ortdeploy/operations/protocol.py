"""What an operation of a pipeline is: a module with a contract, one function and no state.

A value has one element for each row: it is an array [rows, …], or a list with one array for each row if rows differ in
shape. If a row has several things, such as boxes or crops, its element of the list may be a list too; in contracts,
these things are one dimension of unknown size after the rows.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from msgspec import Struct

from ortdeploy.facts.problems import Package
from ortdeploy.tensors.columns import Array, Column
from ortdeploy.tensors.contract_checks import ContractCheck
from ortdeploy.tensors.contracts import PIXELS, Contract, FormalParameter, forms
from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.protocol import Options, inferred

Types = Mapping[str, TensorType]
Call = Callable[[Mapping[str, Column]], tuple[Column, ...]]
"""Takes values by argument name and returns results, all [rows, …]. Raises ValueError for a row that it cannot take."""


CallInTurn = Callable[[Mapping[str, Column], Array], tuple[tuple[Column, ...], Array]]
"""Takes values as a `Call` does, and the state of before; returns results, and the state behind the last row."""

AnyCall = Callable[..., tuple[Any, ...]]
"""Either of these."""


class Operation(Protocol):
    """The names that an operation's module has."""

    @property
    def CONTRACT(self) -> Contract:  # noqa: N802  a module constant
        """The inputs, outputs and settings of the operation."""

    def build(self, options: Options, types: Types) -> AnyCall:
        """Return the function that computes the results. `options` has all settings, defaults too."""


class HeldOperation(Struct, frozen=True):
    """An operation with checks of its contract: `infer` checks types before a run, and the built function arrays."""

    module: Operation

    @property
    def contract(self) -> Contract:
        """The inputs, outputs and settings of the operation."""
        return self.module.CONTRACT

    @property
    def package(self) -> Package | None:
        """The package that the operation needs beside the base install: PACKAGE of the module, if it has that."""
        found: Package | None = getattr(self.module, "PACKAGE", None)
        return found

    @property
    def state(self) -> TensorType | None:
        """What a row passes on to the next one, without an axis of rows, if rows run in turn: STATE of the module."""
        found: TensorType | None = getattr(self.module, "STATE", None)
        return found

    def infer(self, options: Options, types: Types) -> tuple[TensorType, ...]:
        """Return the types of the results; unknown sizes stay open. Raises InapplicableError."""
        return inferred(self.contract, options, types)

    def build(self, options: Options, types: Types) -> AnyCall:
        """Return the function that computes the results; it raises ValueError for rows that break the contract."""
        call = self.module.build(self.contract.filled(options), types)
        check = ContractCheck(self.contract, options, types)
        return lambda values, *state: call(check(values), *state)


_ARRAYS = (np.ndarray, np.generic)


def as_column(values: Sequence[Any]) -> Column:
    """Return the values of all rows as one array [rows, …] if they have one shape and type, else as a list."""
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
    """Turn a function on the named values of one row, […], into an operation that gives `results` columns [rows, …]."""

    def apply(values: Mapping[str, Column]) -> tuple[Column, ...]:
        rows = [call(*row) for row in zip(*(values[name] for name in names), strict=True)]
        return tuple(as_column([row[index] for row in rows]) for index in range(results))

    return apply


def one_by_one(call: Callable[[Array], Array]) -> Call:
    """Turn a function from [rows, …] to [rows, …] into an operation on `x`.

    If rows differ in shape, it gets each of them alone, as […].
    """

    def apply(values: Mapping[str, Column]) -> tuple[Column, ...]:
        column = values["x"]
        return (as_column([call(row) for row in column]) if isinstance(column, list) else call(column),)

    return apply


BOXES = FormalParameter("boxes", "float32", forms("rows n 4"), "left, top, right, bottom in pixels", units=(PIXELS,))
"""Boxes of each row, as an operation gives them."""
