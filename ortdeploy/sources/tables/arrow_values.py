"""Values of Arrow columns as arrays and as Python's values, without copies of numbers and lists of one size."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.sources.empty_cells import null_if_empty
from ortdeploy.tensors.arrow_types import arrow_element_name, is_list, plain_type, tensor_order
from ortdeploy.tensors.columns import Array, Column
from ortdeploy.tensors.elements import numpy_dtype
from ortdeploy.tensors.nanoseconds import Nanoseconds
from ortdeploy.tensors.types import ROWS, USUAL, TensorType

if TYPE_CHECKING:
    import pyarrow as pa
_INT64_DIGITS = 18
"""Digits of whole numbers that int64 always holds."""


class TableError(OrtdeployError):
    """A file is not a readable table."""


class RaggedError(TableError):
    """A row's lists differ in length."""


def tensor_type(kind: "pa.DataType") -> TensorType:
    """Return the type of a column's rows; without element type and shape if no model input takes it.

    Decimals are read as whole or floating numbers, for a step that casts them. Nulls alone have a shape and no element
    type: any fits them.
    """
    import pyarrow as pa  # noqa: PLC0415  an extra, for tables only

    shape: list[int | str | None] = [ROWS]
    kind = plain_type(kind)
    while is_list(kind):
        shape.append(kind.list_size if pa.types.is_fixed_size_list(kind) else None)
        kind = kind.value_type
    name = element_type(kind)
    return TensorType(name, tuple(shape)) if name or pa.types.is_null(kind) else TensorType()


def element_type(kind: "pa.DataType") -> str | None:
    """Return the element type of single values of a type; None if no model input takes them."""
    import pyarrow as pa  # noqa: PLC0415

    if pa.types.is_decimal(kind):
        return "int64" if kind.scale <= 0 and kind.precision - kind.scale <= _INT64_DIGITS else "float64"
    return arrow_element_name(kind)


def innermost(kind: "pa.DataType") -> "pa.DataType":
    """Return the type of what is in lists, or the type itself."""
    return innermost(kind.value_type) if is_list(kind) else kind


def depth_of(kind: "pa.DataType") -> int:
    """Return how many lists deep the values of a type are stored."""
    return 1 + depth_of(kind.value_type) if is_list(kind) else 0


def typed_as(kind: "pa.DataType", dtype: str) -> "pa.DataType":
    """Return a type of nulls or decimals, perhaps in lists, as one of elements of a type."""
    import pyarrow as pa  # noqa: PLC0415

    if not is_list(kind):
        return pa.type_for_alias(dtype)
    inner = typed_as(kind.value_type, dtype)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(inner, kind.list_size)
    return pa.large_list(inner) if pa.types.is_large_list(kind) else pa.list_(inner)


def nulls_for_empty(column: "pa.Array", empty: Sequence[str]) -> "pa.Array":
    """Return a column of texts, or of lists of them, with null for those that stand for an empty cell."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415  takes a moment to import, and few manifests name such texts

    if is_list(column.type):
        return pa.array(null_if_empty(column.to_pylist(), frozenset(empty)), column.type)
    is_empty = pc.is_in(pc.utf8_trim_whitespace(column), value_set=pa.array(empty, column.type))
    return pc.if_else(is_empty, pa.scalar(None, column.type), column)


def is_nanoseconds(kind: "pa.DataType") -> bool:
    """Return whether a type counts time in nanoseconds."""
    import pyarrow as pa  # noqa: PLC0415

    is_time = pa.types.is_timestamp(kind) or pa.types.is_time(kind) or pa.types.is_duration(kind)
    return bool(is_time and kind.unit == "ns")


def holds_nanoseconds(kind: "pa.DataType") -> bool:
    """Return whether a type counts time in nanoseconds, at any depth."""
    import pyarrow as pa  # noqa: PLC0415

    if pa.types.is_dictionary(kind):
        return holds_nanoseconds(kind.value_type)
    inner = [kind.field(index).type for index in range(kind.num_fields)]
    return is_nanoseconds(kind) or any(map(holds_nanoseconds, inner))


def nanoseconds(column: "pa.Array") -> list[Any]:
    """Return a column that counts nanoseconds as values that keep them."""
    import pyarrow as pa  # noqa: PLC0415

    kind, counts = column.type, column.view(pa.int64()).to_pylist()
    rough = pa.time64("us") if pa.types.is_time(kind) else pa.duration("us")
    rough = pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else rough
    rounded = pa.array([None if count is None else count // 1000 for count in counts], pa.int64()).view(rough)
    pairs = zip(counts, rounded.to_pylist(), strict=True)
    return [None if count is None else Nanoseconds(count, kind, value) for count, value in pairs]


def runs_as_dictionary(column: "pa.Array") -> "pa.Array":
    """Return a column of runs as one of a dictionary, in which each run has its value; others as they are.

    Runs of lists, maps or structs are written out: pyarrow reads no dictionaries of these.
    """
    import pyarrow as pa  # noqa: PLC0415

    if not pa.types.is_run_end_encoded(column.type):
        return column
    rows = np.arange(column.offset, column.offset + len(column))
    runs = pa.array(np.searchsorted(np.asarray(column.run_ends), rows, side="right"))
    values = column.values.cast(plain_type(column.type))
    return values.take(runs) if pa.types.is_nested(values.type) else pa.DictionaryArray.from_arrays(runs, values)


def tensors_as_lists(column: "pa.Array") -> "pa.Array":
    """Return a column with its tensors, those in lists and structs too, as lists of fixed sizes; others as they are."""
    import pyarrow as pa  # noqa: PLC0415

    kind = column.type
    if isinstance(kind, pa.FixedShapeTensorType):
        return _tensors(column)
    if not _holds_tensors(kind):
        return column
    mask = column.is_null() if column.null_count else None
    if pa.types.is_struct(kind):
        fields = [tensors_as_lists(one) for one in column.flatten()]
        return pa.StructArray.from_arrays(fields, [one.name for one in kind], mask=mask)
    items = tensors_as_lists(_items(column))
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(items, kind.list_size, mask=mask)
    ends = np.cumsum([length or 0 for length in column.value_lengths().to_pylist()], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(np.append(np.int32(0), ends)), items, mask=mask)


def _holds_tensors(kind: "pa.DataType") -> bool:
    import pyarrow as pa  # noqa: PLC0415

    inner = [kind.field(index).type for index in range(kind.num_fields)] if not pa.types.is_map(kind) else []
    return isinstance(kind, pa.FixedShapeTensorType) or any(map(_holds_tensors, inner))


def _tensors(column: "pa.Array") -> "pa.Array":
    """Return tensors as lists in the order of their axes. pyarrow's own conversion mixes values of other orders."""
    import pyarrow as pa  # noqa: PLC0415

    kind, nulls = column.type, column.is_null() if column.null_count else None
    order, items = tensor_order(kind), _items(column.storage)
    sizes = [kind.shape[axis] for axis in order]
    if not sizes or 0 in sizes:  # of which Arrow makes no lists
        values = np.asarray(items).reshape(len(column), *sizes).tolist()
        return pa.array(values, plain_type(kind), mask=None if nulls is None else np.asarray(nulls))
    if list(order) != sorted(order):
        places = np.arange(len(items)).reshape(len(column), *kind.shape).transpose(0, *(axis + 1 for axis in order))
        items = items.take(pa.array(places.reshape(-1)))
    for size in reversed(sizes[1:]):
        items = pa.FixedSizeListArray.from_arrays(items, size)
    return pa.FixedSizeListArray.from_arrays(items, sizes[0], mask=nulls)


def decoded_bytes(column: "pa.Array") -> int:
    """Return the decoded bytes of a dictionary column: a large value may occur many times."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415  takes a moment to import, and large dictionaries are rare

    if pa.types.is_primitive(column.dictionary.type):
        return int(len(column) * column.dictionary.type.bit_width // 8)
    lengths = pc.binary_length(column.dictionary.cast(pa.large_binary()))
    return int(pc.sum(lengths.take(column.indices)).as_py() or 0)


def has_gaps(column: "pa.Array") -> bool:
    """Return whether a value is null, at any depth."""
    if column.null_count:
        return True
    return is_list(column.type) and has_gaps(_items(column))


def _items(column: "pa.Array") -> "pa.Array":
    """Return the items of the lists of a column without nulls; for lists of one size without pyarrow.compute."""
    import pyarrow as pa  # noqa: PLC0415

    if not pa.types.is_fixed_size_list(column.type):
        return column.flatten()
    size = column.type.list_size
    return column.values.slice(column.offset * size, len(column) * size)


def as_rows(column: "pa.Array") -> Column:
    """Return a column without gaps as one array [rows, …]; nested lists add dimensions."""
    import pyarrow as pa  # noqa: PLC0415

    if pa.types.is_fixed_size_list(column.type):
        inner, size = as_rows(_items(column)), column.type.list_size
        if isinstance(inner, list):
            return [_stacked(inner[row * size : (row + 1) * size], column.type) for row in range(len(column))]
        return inner.reshape(len(column), size, *inner.shape[1:])
    if is_list(column.type):
        return _lists(column)
    return flat(column)


def _lists(column: "pa.Array") -> Column:
    """Return lists of one length as one array [rows, length, …], others one by one."""
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    inner = as_rows(_items(column))
    if len(lengths) and (lengths == lengths[0]).all() and isinstance(inner, np.ndarray):
        return inner.reshape(len(column), int(lengths[0]), *inner.shape[1:])
    ends = np.cumsum(lengths)
    parts = (inner[int(end - length) : int(end)] for end, length in zip(ends, lengths, strict=True))
    return [_stacked(part, column.type) for part in parts]


def _stacked(values: Column, kind: "pa.DataType") -> Array:
    """Return the value of a row, which is a list of a type, as an array […]. Raises RaggedError."""
    if isinstance(values, np.ndarray):
        return values
    if not values:
        told = tensor_type(kind)
        sizes = [size if isinstance(size, int) else 0 for size in (told.shape or ())[2:]]
        return np.empty((0, *sizes), numpy_dtype(told.dtype or USUAL))
    if len({value.shape for value in values}) > 1:
        raise RaggedError("a list holds lists of different lengths, which no tensor can hold")
    return np.stack(values)


def flat(column: "pa.Array") -> Array:
    """Return a column of single values as an array [rows]."""
    import pyarrow as pa  # noqa: PLC0415

    if element_type(column.type) == "string":
        return np.asarray(column.to_numpy(zero_copy_only=False))
    zero_copy = not pa.types.is_boolean(column.type)
    return np.asarray(column.to_numpy(zero_copy_only=zero_copy))
