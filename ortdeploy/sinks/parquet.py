"""Parquet, compressed with Snappy; the origin of a part stands in the schema's metadata."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ortdeploy.facts import Package
from ortdeploy.sinks.protocol import Order, RowShape
from ortdeploy.sinks.tables import TableSink, Writing, merge_tables

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

SUFFIX = ".parquet"
BLOCK_COPIES, PART_COPIES = 2, 0
PACKAGE = Package(module="pyarrow", name="pyarrow", extra="tables")


def open_sink(file: BinaryIO, columns: Mapping[str, RowShape], origin: str) -> TableSink:
    """Begin a part."""
    return TableSink(columns, origin, _begin(file))


def _begin(file: BinaryIO) -> Writing:
    def begin(schema: "pa.Schema") -> "ParquetWriter":
        from pyarrow.parquet import ParquetWriter  # noqa: PLC0415  an extra: only who writes tables needs it

        class Writer(ParquetWriter):  # type: ignore[misc]  # pyarrow is untyped
            def __del__(self) -> None:
                """Do nothing, where pyarrow would finish a part that was given up."""

        return Writer(file, schema, compression="snappy")

    return begin


def merge(old: Path | None, new: Path, order: Order, file: BinaryIO) -> None:
    """Write the rows of two parts of one job as one, in another order."""
    from pyarrow import parquet  # noqa: PLC0415

    merge_tables([parquet.read_table(path) for path in (old, new) if path], order, _begin(file))
