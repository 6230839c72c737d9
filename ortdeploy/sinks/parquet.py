"""Parquet, compressed with Snappy; the origin of a part stands in the schema's metadata."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, BinaryIO

from ortdeploy.facts import Package
from ortdeploy.sinks.protocol import RowShape
from ortdeploy.sinks.tables import TableSink

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

SUFFIX = ".parquet"
PACKAGE = Package(module="pyarrow", name="pyarrow", extra="tables")


def open_sink(file: BinaryIO, columns: Mapping[str, RowShape], origin: str) -> TableSink:
    """Begin a part."""

    def begin(schema: "pa.Schema") -> "ParquetWriter":
        from pyarrow.parquet import ParquetWriter  # noqa: PLC0415  an extra: only who writes tables needs it

        class Writer(ParquetWriter):  # type: ignore[misc]  # pyarrow is untyped
            def __del__(self) -> None:
                """Do nothing, where pyarrow would finish a part that was given up."""

        return Writer(file, schema, compression="snappy")

    return TableSink(columns, origin, begin)
