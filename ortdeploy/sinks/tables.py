"""Result columns as Arrow record batches of a fixed number of rows; shared by Parquet and Arrow.

Where a part is cut into record batches depends on its rows alone, so that equal rows give equal bytes.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ortdeploy.sinks.protocol import RowShape, encoded
from ortdeploy.tensors.columns import Column

if TYPE_CHECKING:
    import pyarrow as pa

ORIGIN = b"ortdeploy"
"""The key of the schema's metadata under which a part's origin stands, as JSON."""

_GROUP_BYTES = 4 * 1024 * 1024
_GROUP_ROWS = 65536

_PLAIN = {str, int, float, bool, type(None)}


class TableWriter(Protocol):
    """Writes record batches into a part."""

    def write_batch(self, batch: "pa.RecordBatch") -> None:
        """Write one."""

    def close(self) -> None:
        """Write what ends the file."""


class Writing(Protocol):
    """Begins a part when its schema is known."""

    def __call__(self, schema: "pa.Schema") -> TableWriter:
        """Return the writer."""


class TableSink:
    """Gathers blocks into record batches."""

    def __init__(self, columns: Mapping[str, RowShape], origin: str, begin: Writing) -> None:
        """Take the columns with the shapes of their rows; `begin` is called with the first rows."""
        self._columns = columns
        self._origin = origin
        self._begin = begin
        self._writer: TableWriter | None = None
        self._schema: pa.Schema | None = None
        self._held: list[pa.RecordBatch] = []
        self._rows = 0
        self._group = _GROUP_ROWS

    def write(self, columns: Mapping[str, Column]) -> None:
        """Take a block. Raises ValueError where rows do not fit the part's schema."""
        batch = self._record_batch(columns)
        self._held.append(batch)
        self._rows += batch.num_rows
        while self._rows >= self._group:
            self._flush(self._group)

    def close(self) -> None:
        """Write the rest."""
        while self._rows:
            self._flush(min(self._rows, self._group))
        if self._writer is not None:
            self._writer.close()

    def _record_batch(self, columns: Mapping[str, Column]) -> "pa.RecordBatch":
        import pyarrow as pa  # noqa: PLC0415  an extra: only who writes tables needs it

        try:
            arrays = [_array(columns[name], shape) for name, shape in self._columns.items()]
            if self._schema is None:
                fields = [pa.field(name, array.type) for name, array in zip(self._columns, arrays, strict=True)]
                self._schema = pa.schema(fields, metadata={ORIGIN: self._origin.encode()})
                self._writer = self._begin(self._schema)
                self._group = _rows_of_a_group(arrays)
            arrays = [
                array if array.type == field.type else array.cast(field.type)
                for array, field in zip(arrays, self._schema, strict=True)
            ]
            return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        except (pa.ArrowException, TypeError) as error:
            raise ValueError(f"the rows do not fit the part's columns: {error}") from error

    def _flush(self, rows: int) -> None:
        import pyarrow as pa  # noqa: PLC0415

        table = pa.Table.from_batches(self._held)
        (batch,) = table.slice(0, rows).combine_chunks().to_batches()
        if self._writer is not None:
            self._writer.write_batch(batch)
        self._held = table.slice(rows).to_batches()
        self._rows -= rows


def _rows_of_a_group(arrays: "list[pa.Array]") -> int:
    """Return how many rows like the first one make a record batch."""
    first = sum(array.slice(0, 1).get_total_buffer_size() if len(array) == 1 else _row_bytes(array) for array in arrays)
    return max(1, min(_GROUP_ROWS, _GROUP_BYTES // max(first, 1)))


def _row_bytes(array: "pa.Array") -> int:
    return int(array.slice(0, 1).nbytes)


def _array(column: Column, shape: RowShape) -> "pa.Array":
    """Return a column as Arrow has it: lists of a fixed size where the plan knows it, of any size where it does not."""
    import pyarrow as pa  # noqa: PLC0415

    if isinstance(column, list):
        return _array_of_list(column)
    if column.dtype == object:
        same = column.strides == (0,) and len(column)
        return pa.repeat(_utf8(column[0]), len(column)) if same else _text(column.tolist())
    flat: Any = pa.array(np.ascontiguousarray(column).reshape(-1))
    sizes = column.shape[1:]
    known = shape if shape is not None and len(shape) == len(sizes) else (None,) * len(sizes)
    for size, fixed in zip(reversed(sizes), reversed(known), strict=True):
        if isinstance(fixed, int):
            flat = pa.FixedSizeListArray.from_arrays(flat, size)
        else:
            offsets = np.arange(0, len(flat) + 1, size) if size else np.zeros(len(column) + 1, np.int64)
            flat = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), flat)
    return flat


def _array_of_list(values: list[Any]) -> "pa.Array":
    """Return keys, rows of different shapes, sequences or maps."""
    import pyarrow as pa  # noqa: PLC0415

    first = next((value for value in values if value is not None), None)
    if isinstance(first, dict):
        pairs = [None if value is None else list(value.items()) for value in values]
        key, item = next(iter(first.items()), ("", 0))
        return pa.array(pairs, pa.map_(pa.scalar(key).type, pa.scalar(_plain(item)).type))
    plain = values if set(map(type, values)) <= _PLAIN else [_plain(value) for value in values]
    if isinstance(first, np.ndarray) and first.dtype != object:
        kind = pa.from_numpy_dtype(first.dtype)
        for _ in range(first.ndim):
            kind = pa.list_(kind)
        return pa.array(plain, kind)
    return _text(plain)


def _text(values: list[Any]) -> "pa.Array":
    """Return text, or what else stands in its place; names of files that are not UTF-8 as other formats write them."""
    import pyarrow as pa  # noqa: PLC0415

    try:
        return pa.array(values)
    except UnicodeEncodeError:
        return pa.array([_utf8(value) for value in values])


def _utf8(value: Any) -> Any:
    return encoded(value).decode() if isinstance(value, str) else value


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return [_plain(item) for item in value] if isinstance(value, list) else value


def merge_tables(parts: "list[pa.Table]", order: Sequence[int], begin: Writing) -> None:
    """Write the rows of several tables as one, in another order; the last one's metadata hold."""
    import pyarrow as pa  # noqa: PLC0415

    schema = parts[-1].schema
    table = pa.concat_tables([part.replace_schema_metadata(schema.metadata) for part in parts]).take(pa.array(order))
    rows = _rows_of_a_group([column.combine_chunks() for column in table.columns])
    writer = begin(schema)
    for first in range(0, len(table), rows):
        (batch,) = table.slice(first, rows).combine_chunks().to_batches()
        writer.write_batch(batch)
    writer.close()
