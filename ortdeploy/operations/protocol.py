"""What an operation of a pipeline is: a module with a contract, one function and no state.

Values have the rows first: an array, or a list with one array (or list of them) a row where rows differ in shape. A
list of things a row, such as boxes or crops, is one dimension of unknown size behind the rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ortdeploy.facts.problems import Package
from ortdeploy.tensors.columns import Array, Column
from ortdeploy.tensors.contract_checks import ContractCheck
from ortdeploy.tensors.contracts import PIXELS, Contract, ContractError, FormalParameter, forms
from ortdeploy.tensors.types import InapplicableError, TensorType
from ortdeploy.transforms.protocol import Options

Types = Mapping[str, TensorType]
Call = Callable[[Mapping[str, Column]], tuple[Column, ...]]
"""Values by argument in, results out; each has the rows first. Raises ValueError for a row that it cannot take."""


class Operation(Protocol):
    """The names that an operation's module has."""

    @property
    def PACKAGE(self) -> Package | None:  # noqa: N802  a module constant
        """The package that it needs, beside the base install."""

    @property
    def CONTRACT(self) -> Contract:  # noqa: N802  a module constant
        """What it takes, gives and is set with."""

    def build(self, options: Options, types: Types) -> Call:
        """Return the function that does it; every setting is there."""


@dataclass(frozen=True, slots=True)
class HeldOperation:
    """An operation whose contract is kept: before a run by `infer`, and by the function that `build` returns."""

    module: Operation

    @property
    def contract(self) -> Contract:
        """What it takes, gives and is set with."""
        return self.module.CONTRACT

    @property
    def package(self) -> Package | None:
        """The package that it needs, beside the base install."""
        return self.module.PACKAGE

    def infer(self, options: Options, types: Types) -> tuple[TensorType, ...]:
        """Return the types of the results, as far as they can be known. Raises InapplicableError."""
        try:
            return self.contract.infer(options, types)
        except ContractError as error:
            raise InapplicableError(str(error)) from error

    def build(self, options: Options, types: Types) -> Call:
        """Return the function that does it; it raises ValueError for rows that do not keep the contract."""
        call = self.module.build(self.contract.filled(options), types)
        check = ContractCheck(self.contract, options, types)
        return lambda values: call(check(values))


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


def one_by_one(call: Callable[[Array], Array]) -> Call:
    """Return an operation on the value `x` from a function on arrays; rows of several shapes are taken one by one."""

    def apply(values: Mapping[str, Column]) -> tuple[Column, ...]:
        column = values["x"]
        return (as_column([call(row) for row in column]) if isinstance(column, list) else call(column),)

    return apply


BOXES = FormalParameter("boxes", "float32", forms("rows n 4"), "left, top, right, bottom in pixels", units=(PIXELS,))
"""Boxes of each row, as an operation gives them."""
