"""Checks arrays against a contract before a step's code sees them, with the same unification as planning.

Rows that look like rows seen before cost a look-up in a set: about a microsecond for a whole array.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ortdeploy.tensors.columns import Array, Column
from ortdeploy.tensors.contracts import Contract, ContractError, FormalParameter, Options, Types
from ortdeploy.tensors.elements import widened
from ortdeploy.tensors.types import ROWS, TensorType

Look = tuple[np.dtype[Any], tuple[int, ...]]
"""The element type and the shape of an array."""

_ARRAYS = (np.ndarray, np.generic)
_TEXT = np.dtype(object)
_MOST_LOOKS = 1024


class ContractCheck:
    """The inputs of one step. `types` are those that the plan knows; arrays take their layouts from them."""

    def __init__(self, contract: Contract, options: Options, types: Types) -> None:
        """Build the check once for all calls."""
        self._contract, self._options = contract, options
        self._inputs = [one for one in contract.inputs if one.name in types]
        self._layouts = {name: tensor.layout for name, tensor in types.items()}
        self._numbers = [one for one in self._inputs if one.finite or one.not_nan]
        self._text = [one for one in self._inputs if "string" in contract.constraint(one).types]
        self._whole: set[tuple[Look, ...]] = set()
        self._rows: set[tuple[Look, ...]] = set()

    def __call__(self, values: Mapping[str, Column]) -> Mapping[str, Column]:
        """Return the values, with arrays in place of empty lists. Raises ContractError."""
        arrays = [values[one.name] for one in self._inputs]
        looks = [(array.dtype, array.shape) for array in arrays if isinstance(array, np.ndarray)]
        if len(looks) == len(arrays):
            look = tuple(looks)
            if look not in self._whole:
                self._hold(look, whole=True)
                _remember(self._whole, look)
        else:
            values = self._check_rows(values)
        for one in self._text:
            _check_text(one, values[one.name])
        for one in self._numbers:
            _check_numbers(one, values[one.name])
        return values

    def _check_rows(self, values: Mapping[str, Column]) -> Mapping[str, Column]:
        """Hold each row by itself, because rows differ in shape."""
        counts = {one.name: len(values[one.name]) for one in self._inputs}
        if len(set(counts.values())) > 1 or not any(counts.values()):
            shown = ", ".join(f"{count} of {name}" for name, count in counts.items())
            raise ContractError(f"it takes the same rows of each input, and gets {shown}")
        checked = {**values, **{one.name: self._without_lists(one, values[one.name]) for one in self._inputs}}
        for look in dict.fromkeys(zip(*(_looks(checked[one.name]) for one in self._inputs), strict=True)):
            if look not in self._rows:
                self._hold(look, whole=False)
                _remember(self._rows, look)
        return checked

    def _without_lists(self, parameter: FormalParameter, column: Column) -> Column:
        """Return a column whose rows that list nothing are empty arrays; other lists are text."""
        if isinstance(column, np.ndarray) or list not in map(type, column):
            return column
        return [self._array(parameter, row) if isinstance(row, list) else row for row in column]

    def _array(self, parameter: FormalParameter, row: list[Any]) -> Array:
        """Return a row that lists no values, or text, as an array. Raises ContractError for pictures of many sizes."""
        if row and not all(isinstance(one, str) for one in row):
            raise ContractError(
                f"it takes {parameter.shapes} and gets rows of {parameter.name} that list values of several shapes; "
                "take them one by one, with each"
            )
        if row:
            return np.array(row, dtype=object)
        sizes = parameter.forms[0].axes[2:] if parameter.forms else ()
        shape = (0, *(size if isinstance(size, int) else 0 for size in sizes))
        dtype = self._contract.constraint(parameter).types[0]
        return np.zeros(shape, _TEXT if dtype == "string" else dtype)

    def _hold(self, look: tuple[Look, ...], *, whole: bool) -> None:
        """Unify the contract with arrays, or with those of one row."""
        types = {}
        for one, (dtype, shape) in zip(self._inputs, look, strict=True):
            name = "string" if dtype.kind in "OU" else dtype.name
            if whole and (not shape or not shape[0]):
                raise ContractError(f"it gets no rows of {one.name}")
            types[one.name] = TensorType(name, shape if whole else (ROWS, *shape), self._layouts[one.name])
        self._contract.solve(self._options, types)


def _remember(looks: set[tuple[Look, ...]], look: tuple[Look, ...]) -> None:
    if len(looks) >= _MOST_LOOKS:
        looks.clear()
    looks.add(look)


def _looks(column: Column) -> list[Look]:
    """Return the look of each row."""
    if isinstance(column, np.ndarray):
        return [(column.dtype, column.shape[1:])] * len(column)
    return [(one.dtype, one.shape) if isinstance(one, _ARRAYS) else _look(one) for one in column]


def _look(value: Any) -> Look:
    if isinstance(value, str):
        return _TEXT, ()
    array = np.asarray(value)
    return array.dtype, array.shape


def _check_text(parameter: FormalParameter, column: Column) -> None:
    """Refuse arrays of objects that hold other things than text."""
    if isinstance(column, list):
        for row in column:
            if isinstance(row, np.ndarray):
                _check_text(parameter, row)
        return
    if column.dtype.kind != "O":
        return
    other = next((one for one in column.flat if not isinstance(one, str)), None)
    if other is not None:
        raise ContractError(f"it takes numbers or text for {parameter.name} and gets {type(other).__name__}")


def _check_numbers(parameter: FormalParameter, column: Column) -> None:
    """Refuse NaN, and infinities where the parameter is to be finite."""
    for array in column if isinstance(column, list) else (column,):
        numbers = widened(array)
        if numbers.size and numbers.dtype.kind == "f":
            low = numbers.min()  # NaN if any of them is
            if np.isnan(low):
                raise ContractError(f"{parameter.name} holds NaN")
            if parameter.finite and (np.isinf(low) or np.isinf(numbers.max())):
                raise ContractError(f"{parameter.name} holds an infinity")
