"""Arrow IPC files (also called Feather) and streams, mapped into memory: columns of numbers, text and lists."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ortdeploy.facts.data import InputFacts
from ortdeploy.files.decoding import decoding
from ortdeploy.files.room import check_room
from ortdeploy.sources import arrow_messages, tables
from ortdeploy.sources.arrow_messages import Batch
from ortdeploy.sources.protocol import Wanted
from ortdeploy.sources.tables import Table, TableError, TableSource, probe_tables

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = (".arrow", ".arrows", ".feather", ".ipc")
FIRST_ROWS = tables.FIRST_ROWS
PACKAGE = tables.PACKAGE

_MAGIC = b"ARROW1"
"""What the file format begins with; the stream format, in which Hugging Face keeps datasets, begins with a length."""
_FIRST_MESSAGE = 8
"""Where the messages of the file format begin; they are those of the stream format."""
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""What a stream ends with."""


def probe(files: Sequence[str], facts: InputFacts) -> InputFacts:
    """Read the schemas, and count the rows of the record batches."""
    return probe_tables(_open, files, facts)


def _open(path: str, limit: int | None) -> Table:
    import pyarrow as pa  # noqa: PLC0415  an extra: only who reads tables needs it

    with decoding(path, "an Arrow IPC file or stream"):
        mapped = pa.memory_map(os.fsencode(path))
        if mapped.read(len(_MAGIC)) == _MAGIC:
            mapped.seek(_FIRST_MESSAGE)
            return _file(path, list(arrow_messages.batches(mapped)), pa.ipc.open_file(mapped), limit)
        mapped.seek(max(mapped.size() - len(_END), 0))
        if mapped.read() != _END:  # else what is cut between two record batches would pass for the whole
            raise TableError(f"{path} is neither an Arrow IPC file nor a whole Arrow IPC stream")
        found = list(arrow_messages.batches(pa.memory_map(os.fsencode(path))))
        return _stream(path, found, lambda: pa.ipc.open_stream(pa.memory_map(os.fsencode(path))), limit)


def _file(path: str, found: Sequence[Batch], reader: "pa.RecordBatchFileReader", limit: int | None) -> Table:
    """Open the file format, which has an index of its record batches."""
    sizes = [batch.rows for batch in found if not batch.is_dictionary]
    if len(sizes) != reader.num_record_batches:
        raise TableError(f"{path} has {len(sizes)} record batches, and its index has {reader.num_record_batches}")

    def batches(start: int, names: Sequence[str]) -> "Iterator[tuple[int, pa.RecordBatch]]":
        _check_room(path, found, limit)
        first = 0
        for number, rows in enumerate(sizes):
            if first + rows > start:
                yield first, _chosen(reader.get_batch(number), names, rows)
            first += rows

    return Table(rows=sum(sizes), schema=reader.schema, held_bytes=_held(found), batches=batches)


def _stream(
    path: str, found: Sequence[Batch], read: "Callable[[], pa.RecordBatchStreamReader]", limit: int | None
) -> Table:
    """Open the stream format, whose record batches come one after the other."""
    sizes = [batch.rows for batch in found if not batch.is_dictionary]

    def batches(start: int, names: Sequence[str]) -> "Iterator[tuple[int, pa.RecordBatch]]":
        _check_room(path, found, limit)
        first = 0
        for batch, rows in zip(read(), sizes, strict=True):
            if first + rows > start:
                yield first, _chosen(batch, names, rows)
            first += rows

    return Table(rows=sum(sizes), schema=read().schema, held_bytes=_held(found), batches=batches)


def _held(found: Sequence[Batch]) -> int:
    """Return what the largest record batch takes decompressed, with all dictionaries."""
    dictionaries = sum(batch.held_bytes for batch in found if batch.is_dictionary)
    return dictionaries + max((batch.held_bytes for batch in found if not batch.is_dictionary), default=0)


def _check_room(path: str, found: Sequence[Batch], limit: int | None) -> None:
    """Raise OrtdeployError if a record batch, which is decompressed whole, needs more memory than there is."""
    check_room(_held(found), f"the largest record batch of {path}", limit)


def _chosen(batch: "pa.RecordBatch", names: Sequence[str], rows: int) -> "pa.RecordBatch":
    """Return the wanted columns. Raises ArrowInvalid if a damaged file says more of them than they hold."""
    chosen = batch.select(list(names)) if names else batch
    chosen.validate(full=True)  # what does not fit would be read beyond the end of the file
    if chosen.num_rows != rows:
        raise TableError(f"a record batch has {chosen.num_rows} rows and says {rows}")
    return chosen


@contextmanager
def open_source(files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[TableSource]:
    """Open Arrow files as one table, one after the other."""
    yield TableSource(files, folder, wanted, _open)
