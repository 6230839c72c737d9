"""Result columns as Arrow record batches of a fixed number of rows; Parquet and Arrow share it.

The rows alone decide where a part is cut into record batches, so equal rows give equal bytes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ortdeploy.sinks.protocol import RowShape, encoded
from ortdeploy.tensors.arrow_types import arrow_array, named_type, shown_type, type_name
from ortdeploy.tensors.carried import plain_values
from ortdeploy.tensors.columns import Column
from ortdeploy.tensors.nanoseconds import Nanoseconds

if TYPE_CHECKING:
    import pyarrow as pa

ORIGIN = b"ortdeploy"
"""The metadata key of the schema under which the origin of a part is stored, as JSON."""

GROUP_BYTES = 4 * 1024 * 1024
"""Bytes of the rows of a record batch, unless one row takes more."""
_GROUP_ROWS = 65536

_PLAIN = {str, int, float, bool, type(None)}


class TableWriter(Protocol):
    """Writes record batches into a part."""

    def write_batch(self, batch: "pa.RecordBatch") -> None:
        """Write one record batch."""

    def close(self) -> None:
        """Write the end of the file."""


Writing = Callable[["pa.Schema"], TableWriter]
"""Begins a part, once its schema is known."""

Reading = Callable[[Path], Iterator["pa.RecordBatch"]]
"""Yields the rows of a part with the schema that they were written with."""


class TableSink:
    """Collects blocks of rows into record batches."""

    is_exact = True

    def __init__(
        self,
        columns: Mapping[str, RowShape],
        origin: str,
        begin: Writing,
        read: Reading,
        types: Mapping[str, str],
    ) -> None:
        """Take the columns with the shapes of their rows; `begin` is called when the schema is known.

        Columns of `types` have these; the first rows tell what others are.
        """
        self._columns = columns
        self._origin = origin
        self._begin = begin
        self._read = read
        self._types = types
        self._writer: TableWriter | None = None
        self._schema: pa.Schema | None = None
        self._empty: pa.RecordBatch | None = None
        self._held: list[pa.RecordBatch] = []
        self._rows = 0
        self._group = _GROUP_ROWS

    def take_up(self, path: Path) -> None:
        """Take the rows of a part that was closed early, a batch at a time."""
        import pyarrow as pa  # noqa: PLC0415

        for batch in self._read(path):
            if not batch.num_rows:
                self._empty = batch
                continue
            if self._schema is None:
                self._begin_with(map(self._settled, batch.schema), batch.columns)
            schema: pa.Schema = self._schema
            arrays = [one.cast(field.type) for one, field in zip(batch.columns, schema, strict=True)]
            self._take(pa.RecordBatch.from_arrays(arrays, schema=schema))

    def write(self, columns: Mapping[str, Column]) -> None:
        """Take a block; one without rows does not fix the schema. Raises ValueError if rows do not fit the schema."""
        if any(map(len, columns.values())):
            self._take(self._record_batch(columns))
        elif self._schema is None:
            self._empty = self._empty_batch(columns)

    def _settled(self, field: "pa.Field") -> "pa.Field":
        """Return a column with the type that it has in all parts, if that is settled."""
        name = self._types.get(field.name)
        return field if name is None else field.with_type(named_type(name))

    def _begin_with(self, fields: "Iterable[pa.Field]", arrays: "Sequence[pa.Array]") -> None:
        """Fix the schema, and the rows in a record batch, by the first rows."""
        self._take_schema(fields)
        self._group = _rows_of_a_group(arrays)

    def _take_schema(self, fields: "Iterable[pa.Field]") -> None:
        import pyarrow as pa  # noqa: PLC0415

        self._schema = pa.schema(list(fields), metadata={ORIGIN: self._origin.encode()})

    def _learn(self, arrays: "Sequence[pa.Array]") -> None:
        """Replace types that the rows so far left open, such as that of lists that were all empty."""
        schema: pa.Schema = self._schema
        if self._writer is not None or not any(_is_open(field.type) for field in schema):
            return
        pairs = zip(schema, arrays, strict=True)
        self._take_schema(field.with_type(one.type) if _is_open(field.type) else field for field, one in pairs)
        self._held = [batch.cast(self._schema) for batch in self._held]

    def _take(self, batch: "pa.RecordBatch") -> None:
        self._held.append(batch)
        self._rows += batch.num_rows
        while self._rows >= self._group:
            self._flush(self._group)

    def close(self) -> None:
        """Write the remaining rows; a part without rows gets a schema too."""
        if self._schema is None and self._empty is not None:
            self._begin_with(self._empty.schema, self._empty.columns)
            self._writer = self._begun()
        while self._rows:
            self._flush(min(self._rows, self._group))
        if self._writer is not None:
            self._writer.close()

    def _empty_batch(self, columns: Mapping[str, Column]) -> "pa.RecordBatch":
        import pyarrow as pa  # noqa: PLC0415

        arrays = [self._array(name, columns[name], shape) for name, shape in self._columns.items()]
        return pa.RecordBatch.from_arrays(arrays, names=list(self._columns))

    def _array(self, name: str, column: Column, shape: RowShape) -> "pa.Array":
        """Return a column as an array of its settled type, or of the one that its values have.

        Raises ValueError if its values are of several types, or of none of Arrow.
        """
        import pyarrow as pa  # noqa: PLC0415

        kind = self._types.get(name)
        try:
            if kind is not None and isinstance(column, list):
                return arrow_array(plain_values(column), kind)
            array = _array(column, shape)
            if kind is None or array.type == named_type(kind):
                return array
            return arrow_array(plain_values(list(column)), kind)
        except (pa.ArrowException, TypeError, OverflowError) as error:
            what = "a column of one type" if kind is None else f"a column of {shown_type(kind)}"
            raise ValueError(f"the rows of {name} do not go into {what} ({error}); use jsonl") from error

    def _record_batch(self, columns: Mapping[str, Column]) -> "pa.RecordBatch":
        import pyarrow as pa  # noqa: PLC0415  an extra, for tables only

        try:
            arrays = [self._array(name, columns[name], shape) for name, shape in self._columns.items()]
            if self._schema is None:
                fields = [pa.field(name, array.type) for name, array in zip(self._columns, arrays, strict=True)]
                self._begin_with(fields, arrays)
            self._learn(arrays)
            schema: pa.Schema = self._schema
            arrays = [
                array if array.type == field.type else array.cast(field.type)
                for array, field in zip(arrays, schema, strict=True)
            ]
            return pa.RecordBatch.from_arrays(arrays, schema=schema)
        except (pa.ArrowException, TypeError) as error:
            raise ValueError(f"the rows do not fit the part's columns: {error}") from error

    def _begun(self) -> TableWriter:
        """Begin the part. Raises ValueError if the format does not have the type of a column."""
        import pyarrow as pa  # noqa: PLC0415

        try:
            return self._begin(self._schema)
        except pa.ArrowNotImplementedError as error:
            raise ValueError(f"the format does not have the type of a column: {error}; use jsonl") from error

    def _flush(self, rows: int) -> None:
        import pyarrow as pa  # noqa: PLC0415

        table = pa.Table.from_batches(self._held)
        first = [table.slice(0, 1), table.slice(1, rows - 1)]  # joined they are copied, without the rest of a block
        (batch,) = pa.concat_tables(first).combine_chunks().to_batches()
        if self._writer is None:
            self._writer = self._begun()
        self._writer.write_batch(batch)
        self._held = table.slice(rows).to_batches()
        self._rows -= rows


def _counted_time(kind: "pa.DataType") -> tuple[str, str | None] | None:
    """Return what a type counts in some unit of time, such as time stamps, and their zone; None for other types."""
    import pyarrow as pa  # noqa: PLC0415

    if pa.types.is_timestamp(kind):
        return "timestamp", kind.tz
    if pa.types.is_time(kind) or pa.types.is_duration(kind):
        return "time" if pa.types.is_time(kind) else "duration", None
    return None


def _in_unit_of(earlier: "pa.Schema", field: "pa.Field") -> "pa.Field":
    """Return a column with its type in an earlier schema, if that differs in the unit of time alone."""
    place = earlier.get_field_index(field.name)
    counted = _counted_time(field.type)
    is_alike = counted is not None and place >= 0 and _counted_time(earlier.field(place).type) == counted
    return field.with_type(earlier.field(place).type) if is_alike else field


def _is_open(kind: "pa.DataType") -> bool:
    """Return whether a type is still unknown because no value has shown it."""
    import pyarrow as pa  # noqa: PLC0415

    if pa.types.is_map(kind):
        return _is_open(kind.key_type) or _is_open(kind.item_type)
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        return _is_open(kind.value_type)
    return bool(pa.types.is_null(kind))


def _rows_of_a_group(arrays: "Sequence[pa.Array]") -> int:
    """Return the number of rows in a record batch, from the size of the first row."""
    first = sum(_value_bytes(array.slice(0, 1)) for array in arrays)
    return max(1, min(_GROUP_ROWS, GROUP_BYTES // max(first, 1)))


def _value_bytes(array: "pa.Array") -> int:
    """Return the bytes of an array's values, without other content of its buffers such as the rest of a block."""
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import compute  # noqa: PLC0415

    kind = array.type
    if pa.types.is_map(kind):
        begin, end = array.offsets[0].as_py(), array.offsets[len(array)].as_py()
        return 4 * len(array) + sum(_value_bytes(each[begin:end]) for each in (array.keys, array.items))
    if isinstance(array, pa.ExtensionArray):
        return _value_bytes(array.storage)
    if pa.types.is_struct(kind):
        return sum(map(_value_bytes, array.flatten()))
    if pa.types.is_fixed_size_list(kind):
        return _value_bytes(array.flatten())
    if pa.types.is_list(kind):
        return 4 * len(array) + _value_bytes(array.flatten())
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return 4 * len(array) + (compute.sum(compute.binary_length(array)).as_py() or 0)
    return 0 if pa.types.is_null(kind) else -(-kind.bit_width * len(array) // 8)


def _array(column: Column, shape: RowShape) -> "pa.Array":
    """Return a column as an Arrow array: lists of a fixed size if the plan knows the size, else of any size."""
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
    """Return a list of keys, rows of different shapes, sequences or maps as an Arrow array."""
    import pyarrow as pa  # noqa: PLC0415

    first = next((value for value in values if value is not None), None)
    if isinstance(first, dict) and _is_map(first):
        pairs = [None if value is None else list(value.items()) for value in values]
        key, item = next(iter(first.items()), ("", 0))
        return pa.array(pairs, pa.map_(pa.scalar(key).type, pa.scalar(_plain(item)).type))
    if isinstance(first, Nanoseconds):
        return pa.array([None if value is None else value.count for value in values], pa.int64()).view(first.kind)
    plain = values if set(map(type, values)) <= _PLAIN else [_plain(value) for value in values]
    if isinstance(first, np.ndarray) and first.dtype != object:
        dtypes = {value.dtype for value in values if isinstance(value, np.ndarray)}
        kind = pa.from_numpy_dtype(first.dtype if len(dtypes) == 1 else np.result_type(*dtypes))
        for _ in range(first.ndim):
            kind = pa.list_(kind)
        return pa.array(plain, kind)
    return _text(plain)


def _is_map(value: Mapping[str, Any]) -> bool:
    """Return whether a map has values of one type; of others, such as a span's text and score, Arrow makes structs."""
    import pyarrow as pa  # noqa: PLC0415

    return len({pa.scalar(_plain(item)).type for item in value.values()}) <= 1


def _text(values: list[Any]) -> "pa.Array":
    """Return values, most of them text, as an Arrow array; file names that are not UTF-8 get escapes."""
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


def named_types(schema: "pa.Schema") -> dict[str, str]:
    """Return the types of the columns of a part, by name; without those that its rows leave open."""
    return {field.name: type_name(field.type) for field in schema if not _is_open(field.type)}


def merge_tables(parts: "list[pa.Table]", order: Sequence[int], begin: Writing) -> None:
    """Write rows of several tables as one table, in the given order, with the metadata of the last one."""
    import pyarrow as pa  # noqa: PLC0415

    metadata = parts[-1].schema.metadata
    parts = [part for part in parts if len(part)] or parts[-1:]
    parts = [part.replace_schema_metadata(metadata) for part in _told(parts)]
    schema = parts[-1].schema
    table = pa.concat_tables(parts).take(pa.array(order, pa.int64()))
    rows = _rows_of_a_group([column.combine_chunks() for column in table.columns])
    writer = begin(schema)
    for first in range(0, len(table), rows):
        (batch,) = table.slice(first, rows).combine_chunks().to_batches()
        writer.write_batch(batch)
    writer.close()


def _told(parts: "Sequence[pa.Table]") -> "list[pa.Table]":
    """Return tables of equal types: a column of unknown type, such as one of nulls, gets that of another part.

    Times get the unit of the first part.
    """
    import pyarrow as pa  # noqa: PLC0415

    told = pa.schema(
        next((field for field in fields if not _is_open(field.type)), fields[0])
        for fields in zip(*(part.schema for part in parts), strict=True)
    )
    return [_cast(part, told) for part in parts]


def _cast(part: "pa.Table", told: "pa.Schema") -> "pa.Table":
    for place, field in enumerate(told):
        own = part.schema.field(place)
        wanted = field if _is_open(own.type) else _in_unit_of(told, own)
        if wanted.type != own.type:
            part = part.set_column(place, wanted, part.column(place).cast(wanted.type))
    return part
