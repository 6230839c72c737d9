"""Arrow IPC files (also called Feather) and streams: columns of numbers, text and lists.

They are read in pieces and never mapped: if a file is cut while it is read, the job ends with a message.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ortdeploy.facts.data import InputFacts
from ortdeploy.files.decoding import decoding
from ortdeploy.files.memory_budget import check_room
from ortdeploy.files.opening import regular_path
from ortdeploy.sources.protocol import Wanted
from ortdeploy.sources.settings import WINDOW
from ortdeploy.sources.tables import table_source
from ortdeploy.sources.tables.arrow_batches import BatchFile, BatchPlace, UnknownLayoutError
from ortdeploy.sources.tables.arrow_values import TableError
from ortdeploy.sources.tables.table_source import Table, TableSource, probe_tables

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = (".arrow", ".arrows", ".feather", ".ipc")
FIRST_ROWS = table_source.FIRST_ROWS
PACKAGE = table_source.PACKAGE
SETTINGS = (WINDOW,)

PIECE_BYTES = 4 * 1024 * 1024
"""How much of a record batch is read at once: a batch may be the whole file."""

_MAGIC = b"ARROW1"
"""What the file format begins with; the stream format, in which Hugging Face keeps datasets, begins with a length."""
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""What a stream ends with."""
_KIND = "an Arrow IPC file or stream"


def probe(files: Sequence[str], facts: InputFacts) -> InputFacts:
    """Read the schemas, and count the rows of the record batches."""
    return probe_tables(_open, files, facts)


def _open(path: str, limit: int | None) -> Table:
    import pyarrow as pa  # noqa: PLC0415  an extra, for tables only

    with decoding(path, _KIND):
        file = pa.OSFile(os.fsencode(regular_path(path)))
        batches = BatchFile(path, file)
        is_file = file.read(len(_MAGIC)) == _MAGIC
        if not is_file:
            file.seek(max(file.size() - len(_END), 0))
            if file.read() != _END:  # else what is cut between two record batches would pass for the whole
                raise TableError(f"{path} is neither an Arrow IPC file nor a whole Arrow IPC stream")
        file.seek(0)
        schema = (pa.ipc.open_file(file) if is_file else pa.ipc.open_stream(file)).schema
        found = batches.in_file() if is_file else batches.in_stream()
        sizes = [batches.held_bytes(place, schema) for place in found]
        whole = [size for place, size in zip(found, sizes, strict=True) if not place.is_dictionary]
        held = sum(sizes) - sum(whole) + max(whole, default=0)  # the largest batch, with all dictionaries
        places = [place for place in found if not place.is_dictionary]
        opened = _OpenFile(path, schema, batches, places, is_file=is_file)

        def checked(start: int, names: Sequence[str]) -> "Iterator[tuple[int, pa.RecordBatch]]":
            check_room(held, f"the largest record batch of {path}", limit)
            return opened.batches(start, names)

        return Table(rows=sum(place.rows for place in places), schema=schema, held_bytes=held, batches=checked)


class _OpenFile:
    """A file whose batches are known. Of a large batch, only some rows are read at once."""

    def __init__(
        self, path: str, schema: "pa.Schema", file: BatchFile, places: Sequence[BatchPlace], *, is_file: bool
    ) -> None:
        self._path, self._schema, self._file, self._places, self._is_file = path, schema, file, places, is_file

    def batches(self, start: int, names: Sequence[str]) -> "Iterator[tuple[int, pa.RecordBatch]]":
        """Yield record batches, or pieces of them, from the one with a row on. Raises TableError."""
        wanted = list(names) or self._schema.names[:1]
        whole = _WholeBatches(self._path, self._schema, wanted, is_file=self._is_file)
        first = 0
        for number, place in enumerate(self._places):
            if first + place.rows > start:
                for begin, batch in self._pieces(number, place, max(start - first, 0), wanted, whole):
                    yield first + begin, batch
            first += place.rows

    def _pieces(
        self, number: int, place: BatchPlace, begin: int, names: Sequence[str], whole: "_WholeBatches"
    ) -> "Iterator[tuple[int, pa.RecordBatch]]":
        """Yield a batch from a row on, with the number of the first row in it."""
        at_once = max(PIECE_BYTES * place.rows // max(place.decompressed or place.size, 1), 1)
        in_pieces = at_once < place.rows and place.decompressed is None
        while begin < place.rows and in_pieces:
            try:
                end = min(begin + at_once, place.rows)
                batch = self._file.rows(place, self._schema, names, begin, end)
            except UnknownLayoutError:
                break
            yield begin, _sound(batch, end - begin)
            begin = end
        if begin < place.rows:
            yield from _copies(_sound(whole.get(number), place.rows), begin, at_once)


def _copies(batch: "pa.RecordBatch", begin: int, at_once: int) -> "Iterator[tuple[int, pa.RecordBatch]]":
    """Yield copies of a large batch's rows: it goes when they are through, and is never held beside the next."""
    if batch.num_rows <= at_once:
        yield 0, batch
        return
    for first in range(begin, batch.num_rows, at_once):
        yield first, batch.take(np.arange(first, min(first + at_once, batch.num_rows)))


class _WholeBatches:
    """Record batches as pyarrow reads them; only the wanted columns are."""

    def __init__(self, path: str, schema: "pa.Schema", names: Sequence[str], *, is_file: bool) -> None:
        self._path, self._schema, self._names, self._is_file = path, schema, names, is_file
        self._reader: Any = None
        self._next = 0

    def get(self, number: int) -> "pa.RecordBatch":
        """Return a batch; callers ask for batches in order. Raises TableError."""
        with decoding(self._path, _KIND):
            if self._reader is None:
                self._reader = self._open()
            if self._is_file:
                batch = self._reader.get_batch(number)
            else:
                while self._next <= number:  # a stream has no index
                    batch = self._reader.read_next_batch()
                    self._next += 1
            return batch.select(list(self._names))

    def _open(self) -> Any:
        import pyarrow as pa  # noqa: PLC0415  as above

        file = pa.OSFile(os.fsencode(regular_path(self._path)))
        chosen = [index for index, name in enumerate(self._schema.names) if name in self._names]
        options = pa.ipc.IpcReadOptions(included_fields=chosen, use_threads=False)
        return (pa.ipc.open_file if self._is_file else pa.ipc.open_stream)(file, options=options)


def _sound(batch: "pa.RecordBatch", rows: int) -> "pa.RecordBatch":
    """Validate a batch and return it. Raises ArrowInvalid, TableError."""
    batch.validate(full=True)
    if batch.num_rows != rows:
        raise TableError(f"a record batch has {batch.num_rows} rows and says {rows}")
    return batch


@contextmanager
def open_source(files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[TableSource]:
    """Open Arrow files as one table, one after the other."""
    yield TableSource(files, folder, wanted, _open)
