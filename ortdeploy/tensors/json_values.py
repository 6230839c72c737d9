"""Values as JSON and CSV have them: what they have no type for becomes text.

Numbers keep every bit; NaN and infinities, which JSON does not have, become null. Dates, times, decimals and UUIDs,
which are cells of tables, become the text that Python shows, and bytes become hexadecimal digits.
"""

import math
from typing import Any

import numpy as np

from ortdeploy.tensors.columns import Array, Column

_SAME = frozenset({str, int, bool, type(None)})
"""Types of values that stand in JSON as they are."""
_KNOWN = _SAME | {float}


def as_text(value: Any) -> str:
    """Return one value as text."""
    return value.hex() if isinstance(value, bytes) else str(value)


def text_array(array: Array) -> Array:
    """Return objects […] as numpy's text of the same shape, in which bytes are hexadecimal digits."""
    return np.array([as_text(value) for value in array.ravel().tolist()], dtype=str).reshape(array.shape)


def json_column(column: Column) -> list[Any]:
    """Return a column as Python values that JSON has."""
    values: list[Any] = column if isinstance(column, list) else column.tolist()
    if isinstance(column, list) or column.dtype.kind not in "biufU":
        return values if set(map(type, values)) <= _SAME else [json_value(value) for value in values]
    if np.issubdtype(column.dtype, np.floating) and not np.isfinite(column).all():
        return [_without_nan(value) for value in values]
    return values


def json_value(value: Any) -> Any:
    """Return a value as one that JSON has: a cell, a list, a map or an array of its own."""
    if isinstance(value, np.ndarray):
        return json_column(value) if value.ndim else json_column(value[np.newaxis])[0]
    if isinstance(value, dict):
        return {key: json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    value = value.item() if isinstance(value, np.generic) else value
    return _without_nan(value) if type(value) in _KNOWN else as_text(value)


def _without_nan(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
