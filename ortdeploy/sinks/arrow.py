"""Arrow IPC files, which readers map into memory; the metadata of the schema has the origin of a part."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ortdeploy.facts.problems import Package
from ortdeploy.files.opening import regular_path
from ortdeploy.sinks.protocol import Order, RowShape
from ortdeploy.sinks.tables import GROUP_BYTES, TableSink, Writing, merge_tables, named_types

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIX = ".arrow"
BLOCK_COPIES, PIECE, GATHERED, PART_COPIES = 1, 0, GROUP_BYTES, 0
KEEPS_ZEROS = True
KEEPS_NULLS, KEEPS_SURROGATES = True, False
COLUMN_TYPES = "all"
PACKAGE = Package(module="pyarrow", name="pyarrow", extra="tables")


def open_sink(file: BinaryIO, columns: Mapping[str, RowShape], origin: str, types: Mapping[str, str]) -> TableSink:
    """Begin a part."""
    return TableSink(columns, origin, _begin(file), _read, types)


def _begin(file: BinaryIO) -> Writing:
    def begin(schema: "pa.Schema") -> "pa.ipc.RecordBatchFileWriter":
        import pyarrow as pa  # noqa: PLC0415  an extra, for tables only

        return pa.ipc.new_file(file, schema)

    return begin


def _read(path: Path) -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa  # noqa: PLC0415

    with pa.OSFile(str(regular_path(path))) as file:
        part = pa.ipc.open_file(file)
        if not part.num_record_batches:
            yield pa.RecordBatch.from_pylist([], schema=part.schema)
        yield from map(part.get_batch, range(part.num_record_batches))


def column_types(path: Path) -> dict[str, str]:
    """Return the types of the columns of a part, by name, of those that its rows tell."""
    return named_types(next(_read(path)).schema)


def row_numbers(path: Path) -> list[int]:
    """Return the column `row` of a part."""
    import pyarrow as pa  # noqa: PLC0415

    with pa.OSFile(str(regular_path(path))) as file:
        return [int(number) for number in pa.ipc.open_file(file).read_all().column("row").to_numpy()]


def merge(parts: Sequence[Path], order: Order, file: BinaryIO) -> None:
    """Write chosen rows of several parts of one job as one part, in the given order."""
    import pyarrow as pa  # noqa: PLC0415

    merge_tables([pa.ipc.open_file(regular_path(path)).read_all() for path in parts], order, _begin(file))
