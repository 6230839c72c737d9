"""Arrow IPC files (also called Feather) and streams, mapped into memory: columns of numbers, text and lists."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ortdeploy.facts.data import InputFacts
from ortdeploy.sources import tables
from ortdeploy.sources.protocol import Wanted
from ortdeploy.sources.tables import Table, TableError, TableSource, probe_tables

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = (".arrow", ".arrows", ".feather", ".ipc")
FIRST_ROWS = tables.FIRST_ROWS
PACKAGE = tables.PACKAGE

_MAGIC = b"ARROW1"
"""What the file format begins with; the stream format, in which Hugging Face keeps datasets, begins with a length."""
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""What a stream ends with."""


def probe(files: Sequence[str], facts: InputFacts) -> InputFacts:
    """Read the schemas, and count the rows of the record batches."""
    return probe_tables(_open, files, facts)


def _open(path: str) -> Table:
    import pyarrow as pa  # noqa: PLC0415  an extra: only who reads tables needs it

    try:
        mapped = pa.memory_map(os.fsencode(path))
        if mapped.read(len(_MAGIC)) == _MAGIC:
            return _file(pa.ipc.open_file(mapped))
        mapped.seek(max(mapped.size() - len(_END), 0))
        if mapped.read() != _END:  # else what is cut between two record batches would pass for the whole
            raise TableError(f"{path} is neither an Arrow IPC file nor a whole Arrow IPC stream")
        return _stream(lambda: pa.ipc.open_stream(pa.memory_map(os.fsencode(path))))
    except (OSError, pa.ArrowException) as error:
        raise TableError(f"{path} cannot be read as an Arrow IPC file or stream: {error}") from error


def _file(reader: "pa.RecordBatchFileReader") -> Table:
    """Open the file format, which has an index of its record batches."""
    sizes = [_rows_of(reader.get_batch(number)) for number in range(reader.num_record_batches)]

    def batches(start: int, names: Sequence[str]) -> "Iterator[tuple[int, pa.RecordBatch]]":
        first = 0
        for number, rows in enumerate(sizes):
            if first + rows > start:
                yield first, _chosen(reader.get_batch(number), names)
            first += rows

    return Table(rows=sum(sizes), schema=reader.schema, batches=batches)


def _stream(read: "Callable[[], pa.RecordBatchStreamReader]") -> Table:
    """Open the stream format, whose record batches come one after the other."""

    def batches(start: int, names: Sequence[str]) -> "Iterator[tuple[int, pa.RecordBatch]]":
        first = 0
        for batch in read():
            if first + batch.num_rows > start:
                yield first, _chosen(batch, names)
            first += batch.num_rows

    return Table(rows=sum(_rows_of(batch) for batch in read()), schema=read().schema, batches=batches)


def _rows_of(batch: "pa.RecordBatch") -> int:
    """Count rows. Raises ArrowInvalid where a damaged file says more of its columns than they hold."""
    batch.validate()
    return int(batch.num_rows)


def _chosen(batch: "pa.RecordBatch", names: Sequence[str]) -> "pa.RecordBatch":
    return batch.select(list(names)) if names else batch


@contextmanager
def open_source(files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[TableSource]:
    """Open Arrow files as one table, one after the other."""
    yield TableSource(files, folder, wanted, _open)
