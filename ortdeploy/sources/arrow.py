"""Arrow IPC files (also called Feather), mapped into memory: columns of numbers, text and lists."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ortdeploy.facts import InputFacts
from ortdeploy.sources import tables
from ortdeploy.sources.protocol import Wanted
from ortdeploy.sources.tables import Table, TableError, TableSource, probe_tables

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = (".arrow", ".feather", ".ipc")
FIRST_ROWS = tables.FIRST_ROWS
PACKAGE = tables.PACKAGE


def probe(files: Sequence[str], facts: InputFacts) -> InputFacts:
    """Read the schemas, and count the rows of the record batches."""
    return probe_tables(_open, files, facts)


def _open(path: str) -> Table:
    import pyarrow as pa  # noqa: PLC0415  an extra: only who reads tables needs it

    try:
        reader = pa.ipc.open_file(pa.memory_map(path))
        sizes = [reader.get_batch(number).num_rows for number in range(reader.num_record_batches)]
    except (OSError, pa.ArrowException) as error:
        raise TableError(f"{path} cannot be read as an Arrow IPC file: {error}") from error

    def batches(start: int, names: Sequence[str]) -> "Iterator[tuple[int, pa.RecordBatch]]":
        first = 0
        for number, rows in enumerate(sizes):
            if first + rows > start:
                yield first, reader.get_batch(number).select(list(names)) if names else reader.get_batch(number)
            first += rows

    return Table(rows=sum(sizes), schema=reader.schema, batches=batches)


@contextmanager
def open_source(files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[TableSource]:
    """Open Arrow files as one table, one after the other."""
    yield TableSource(files, folder, wanted, _open)
