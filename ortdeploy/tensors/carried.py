"""Values that a job carries from its input to its output, in the one type that their column has there.

A value keeps what it is, or its row fails: a whole number may become a floating one that is equal, and every single
value may become text. Nothing becomes true, false or a number that was none; only cells of CSV are read as these.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ortdeploy.tensors.columns import Array, Column
from ortdeploy.tensors.conversion import ConversionError, convert, joint_type, rounded_places, rounds
from ortdeploy.tensors.json_values import as_text
from ortdeploy.tensors.types import FLOATING, INTEGERS
from ortdeploy.terminal_text import shortened

TEXT = "text"
SINGLE = (TEXT, "bool", *INTEGERS, *FLOATING)
"""The types that a manifest may name for a column."""

_PLAIN = frozenset({str, bool, int, float})


def type_of_values(values: Iterable[Any]) -> str | None:
    """Return the name of the type that holds all values of a column, as JSON has them; None if all are null.

    It is the narrowest of bool, int64, uint64 and float64 that keeps them, lists or maps of one, else text.
    """
    found = [value for value in values if value is not None]
    if not found:
        return None
    if all(isinstance(value, list) for value in found):
        return f"list<{type_of_values(item for value in found for item in value) or TEXT}>"
    if all(isinstance(value, dict) for value in found):
        return f"map<text, {type_of_values(item for value in found for item in value.values()) or TEXT}>"
    if any(isinstance(value, list | dict) for value in found):
        return TEXT
    name = joint_type(found)
    return TEXT if name in {None, "string"} else name


def fit(column: Column, name: str, *, parse: bool) -> tuple[Column, dict[int, str]]:
    """Return a column [rows, …] in a named type, and why values do not fit it, by their places, where null stands.

    Texts are read as numbers and booleans if they are to be parsed: then an empty one is null.
    """
    if name == TEXT:
        return _as_texts(column), {}
    if name not in SINGLE:
        return column, _unfit_in_arrow(column, name)
    if isinstance(column, np.ndarray) and column.dtype.name == name:
        return column, {}
    if isinstance(column, np.ndarray) and column.ndim > 1:
        return column, dict.fromkeys(range(len(column)), f"a list does not fit {name}")
    values = column if isinstance(column, list) else column.tolist()
    return _together(values, name) if not parse else _one_by_one(values, partial(_parsed, name=name), name)


def _together(values: list[Any], name: str) -> tuple[Column, dict[int, str]]:
    """Fit values of the kind that a type has all at once, others one by one."""
    kinds = set(map(type, values))
    if name == "bool" and kinds == {bool}:
        return np.array(values), {}
    if kinds == {int} and name in INTEGERS:
        try:
            return convert(_whole(values), name), {}
        except ConversionError:
            pass
    if kinds == {float} and name in FLOATING:
        try:
            return convert(np.array(values), name), {}
        except ConversionError:
            pass
    return _one_by_one(values, partial(_fitted, name=name), name)


def _whole(values: list[int]) -> Array:
    """Return whole numbers as they are; numpy alone makes floating ones of those that no type of its own holds."""
    array = np.array(values)
    return array if array.dtype.kind in "iu" else np.array(values, dtype=object)


def fit_elements(column: Column, name: str) -> tuple[Column, dict[int, str]]:
    """Return numbers [rows, …] in an element type, and why rows do not fit it, by their places; these hold zeros."""
    if isinstance(column, np.ndarray):
        if column.dtype.name == name or column.dtype.kind not in "iuf":
            return column, {}
        found = _converted(column, name)
        if found is not None:
            return found, {}
    unfit: dict[int, str] = {}
    rows = []
    for place, value in enumerate(column):
        row = np.asarray(value)
        kept = row if row.dtype.kind not in "iuf" else _converted(row, name)
        if kept is None:
            unfit[place] = f"{shown(value)} does not fit {name}"
        rows.append(np.zeros(row.shape, name) if kept is None else kept)
    is_even = len({(row.shape, row.dtype) for row in rows}) == 1
    return (np.stack(rows) if is_even else rows), unfit


def _converted(numbers: Array, name: str) -> Array | None:
    """Return numbers […] in an element type; None if one does not fit it, or a whole one would be rounded."""
    if name in FLOATING and numbers.dtype.kind in "iu" and rounded_places(numbers.reshape(-1), name):
        return None
    try:
        return convert(numbers, name)
    except ConversionError:
        return None


def _one_by_one(values: Sequence[Any], fitted: Callable[[Any], Any], name: str) -> tuple[Column, dict[int, str]]:
    found: list[Any] = []
    unfit: dict[int, str] = {}
    for place, value in enumerate(values):
        try:
            found.append(None if value is None else fitted(value))
        except (ValueError, OverflowError):
            found.append(None)
            unfit[place] = f"{shown(value)} does not fit {name}"
    return (found if None in found else np.array(found, dtype=name)), unfit


def _fitted(value: Any, name: str) -> Any:
    """Return a value as Python's of a type. Raises ValueError, OverflowError."""
    value = value.item() if isinstance(value, np.generic) else value
    is_number = not isinstance(value, bool | str) and hasattr(value, "__float__")
    if name == "bool":
        if isinstance(value, bool):
            return value
    elif is_number and name in INTEGERS:
        whole = int(value)
        if whole == value:
            return int(convert(np.array([whole], dtype=object), name)[0])
    elif is_number:
        number = convert(np.array([float(value)]), name)[0].item()
        if not rounds(value, name):
            return number
    raise ValueError(value)


def _parsed(value: Any, name: str) -> Any:
    """Return the value that a text is written as, None for an empty one. Raises ValueError."""
    if not isinstance(value, str):
        return _fitted(value, name)
    if not value:
        return None
    from ortdeploy.tensors.written_numbers import read_numbers, rounded_wholes  # noqa: PLC0415  only for such columns

    written = np.array([value], dtype=object)
    numbers = read_numbers(written, name)
    if any(True for _ in rounded_wholes(written, name)):
        raise ValueError(value)
    return numbers[0].item()


def _as_texts(column: Column) -> Column:
    """Return values as texts: numbers, booleans, lists and maps as JSON has them, others as everywhere."""
    if isinstance(column, np.ndarray):
        if column.dtype.kind == "O" and column.strides == (0,):  # one value for all rows
            return column
        column = list(column) if column.ndim > 1 else column.tolist()
    return column if set(map(type, column)) <= {str, type(None)} else list(map(_text, column))


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    if isinstance(value, bool | list | dict):
        import json  # noqa: PLC0415  only for such values

        return json.dumps(value, ensure_ascii=False, default=as_text)
    return as_text(value)


def _unfit_in_arrow(column: Column, name: str) -> dict[int, str]:
    """Return why values do not fit a type of Arrow's, by their places."""
    import pyarrow as pa  # noqa: PLC0415  an extra, for tables only

    from ortdeploy.tensors.arrow_types import arrow_array, named_type, shown_type  # noqa: PLC0415  only with pyarrow

    if isinstance(column, np.ndarray) and column.dtype != object and _holds(named_type(name), column.dtype.name):
        return {}
    values = list(column) if isinstance(column, np.ndarray) else column
    errors = (pa.ArrowException, TypeError, ValueError, OverflowError)
    try:
        arrow_array(plain_values(values), name)
    except errors:
        unfit = {}
        for place, value in enumerate(values):
            try:
                arrow_array(plain_values([value]), name)
            except errors:
                unfit[place] = f"{shown(value)} does not fit {shown_type(name)}"
        return unfit
    return {}


def _holds(kind: Any, dtype: str) -> bool:
    """Return whether a list type holds arrays of an element type."""
    while hasattr(kind, "value_type"):
        kind = kind.value_type
    return str(kind) == {"float16": "halffloat", "float32": "float", "float64": "double"}.get(dtype, dtype)


def plain_values(values: Sequence[Any]) -> list[Any]:
    """Return values with lists in place of arrays."""
    if set(map(type, values)) <= _PLAIN:
        return list(values)
    return [value.tolist() if isinstance(value, np.ndarray | np.generic) else value for value in values]


def shown(value: Any) -> str:
    """Return a value as a message has it, shortened."""
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    text = f'"{value}"' if isinstance(value, str) else as_text(value)
    return shortened(text, 60)
