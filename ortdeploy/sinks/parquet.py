"""Parquet, compressed with Snappy; the metadata of the schema has the origin of a part."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ortdeploy.facts.problems import Package
from ortdeploy.files.opening import regular_path
from ortdeploy.sinks.protocol import Order, RowShape
from ortdeploy.sinks.tables import GROUP_BYTES, TableSink, Writing, merge_tables, named_types

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile, ParquetWriter

SUFFIX = ".parquet"
BLOCK_COPIES, PIECE, GATHERED, PART_COPIES = 5, 0, GROUP_BYTES, 0  # three at once, and two that the heap keeps in holes
KEEPS_ZEROS = True
KEEPS_NULLS, KEEPS_SURROGATES = True, False
COLUMN_TYPES = "all"
PACKAGE = Package(module="pyarrow", name="pyarrow", extra="tables")


def open_sink(file: BinaryIO, columns: Mapping[str, RowShape], origin: str, types: Mapping[str, str]) -> TableSink:
    """Begin a part."""
    return TableSink(columns, origin, _begin(file), _read, types)


def _begin(file: BinaryIO) -> Writing:
    def begin(schema: "pa.Schema") -> "ParquetWriter":
        from pyarrow.parquet import ParquetWriter  # noqa: PLC0415  an extra, for tables only

        class Writer(ParquetWriter):  # type: ignore[misc]  # pyarrow is untyped
            def __del__(self) -> None:
                """Do nothing. Without this, pyarrow would complete a part that was given up."""

        repeating = [path for field in schema for path in _repeating(field.name, field.type)]
        return Writer(file, schema, compression="snappy", use_dictionary=repeating)

    return begin


def _repeating(path: str, kind: "pa.DataType") -> list[str]:
    """Return the columns that are worth a dictionary, by their paths in Parquet: all but floating numbers.

    Floating numbers hardly repeat: with a dictionary, a part takes five times as long to encode and is a third larger.
    """
    import pyarrow as pa  # noqa: PLC0415

    if pa.types.is_map(kind):
        pairs = f"{path}.key_value"
        return _repeating(f"{pairs}.key", kind.key_type) + _repeating(f"{pairs}.value", kind.item_type)
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        return _repeating(f"{path}.list.element", kind.value_type)
    return [] if pa.types.is_floating(kind) else [path]


def _read(path: Path) -> "Iterator[pa.RecordBatch]":
    """Yield the rows of a part with the schema that they were written with; Parquet alone does not keep it."""
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow.parquet import ParquetFile  # noqa: PLC0415

    with ParquetFile(regular_path(path)) as part:
        schema = _written_schema(part)
        if not part.metadata.num_rows:
            yield pa.RecordBatch.from_pylist([], schema=schema)
        for batch in part.iter_batches():
            arrays = [array.cast(field.type) for array, field in zip(batch.columns, schema, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _written_schema(part: "ParquetFile") -> "pa.Schema":
    import pyarrow as pa  # noqa: PLC0415

    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(part.metadata.metadata[b"ARROW:schema"])))


def column_types(path: Path) -> dict[str, str]:
    """Return the types of the columns of a part, by name, of those that its rows tell."""
    return named_types(next(_read(path)).schema)


def row_numbers(path: Path) -> list[int]:
    """Return the column `row` of a part."""
    from pyarrow import parquet  # noqa: PLC0415

    return [int(number) for number in parquet.read_table(regular_path(path), columns=["row"]).column("row").to_numpy()]


def merge(parts: Sequence[Path], order: Order, file: BinaryIO) -> None:
    """Write chosen rows of several parts of one job as one part, in the given order."""
    merge_tables([_table(path) for path in parts], order, _begin(file))


def _table(path: Path) -> "pa.Table":
    """Return a part with the schema that it was written with: Parquet renames the fields inside of lists and maps."""
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow.parquet import ParquetFile  # noqa: PLC0415

    with ParquetFile(regular_path(path)) as part:
        schema = _written_schema(part)
    return pa.Table.from_batches(_read(path), schema=schema)
