"""Arrow IPC files, which readers map into memory; the origin of a part stands in the schema's metadata."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, BinaryIO

from ortdeploy.facts import Package
from ortdeploy.sinks.protocol import RowShape
from ortdeploy.sinks.tables import TableSink

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIX = ".arrow"
PACKAGE = Package(module="pyarrow", name="pyarrow", extra="tables")


def open_sink(file: BinaryIO, columns: Mapping[str, RowShape], origin: str) -> TableSink:
    """Begin a part."""

    def begin(schema: "pa.Schema") -> "pa.ipc.RecordBatchFileWriter":
        import pyarrow as pa  # noqa: PLC0415  an extra: only who writes tables needs it

        return pa.ipc.new_file(file, schema)

    return TableSink(columns, origin, begin)
