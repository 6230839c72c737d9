"""Parquet: columns of numbers, text and lists. Read in small batches of rows, so that row groups can be of any size."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

import numpy as np

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import InputFacts
from ortdeploy.files.decoding import decoding
from ortdeploy.files.memory_budget import check_room, room
from ortdeploy.files.opening import open_unbuffered, regular_path
from ortdeploy.sources.protocol import Wanted
from ortdeploy.sources.settings import WINDOW
from ortdeploy.sources.tables import table_source
from ortdeploy.sources.tables.parquet_pages import pages
from ortdeploy.sources.tables.table_source import Table, TableSource, probe_tables

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import ColumnChunkMetaData, FileMetaData, ParquetFile

SUFFIXES = (".parquet", ".pq")
FIRST_ROWS = table_source.FIRST_ROWS
PACKAGE = table_source.PACKAGE
SETTINGS = (WINDOW,)

MOST_ROWS, MOST_BYTES = 16384, 512 * 1024
"""The most rows and bytes that are decoded at once, but at least one row."""

_BUFFER_BYTES = 1024 * 1024  # row groups are streamed through a buffer; pre-buffered ones stay until the file is closed

_SHARE = 4
"""The pages of a column that take less than the room divided by this are not looked at."""


def probe(files: Sequence[str], facts: InputFacts) -> InputFacts:
    """Read the footers."""
    return probe_tables(_open, files, facts)


def _open(path: str, limit: int | None) -> Table:
    import pyarrow as pa  # noqa: PLC0415  an extra, for tables only

    file = _opened(path)
    with decoding(path, "Parquet"):
        columns = _Columns(path, file.metadata, limit)

    def batches(start: int, names: Sequence[str]) -> "Iterator[tuple[int, pa.RecordBatch]]":
        groups, first = [], 0
        number = 0
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if number + rows <= start:
                first = number + rows
            else:
                groups.append(group)
            number += rows
        if not names:  # only the rows' numbers are wanted
            yield first, pa.RecordBatch.from_struct_array(pa.array([{}] * (number - first), pa.struct([])))
            return
        check_room(columns.held_bytes(names), f"the largest pages of {path}", limit)
        rows = columns.rows_at_once(names)
        read = file.iter_batches(rows, row_groups=groups, columns=list(names), use_threads=False)
        old = [name for name in names if name in old_times]
        exact = (
            _opened(path, times="us").iter_batches(rows, row_groups=groups, columns=old, use_threads=False)
            if old
            else None
        )
        for batch in read:
            if exact is not None:
                _refuse_wrapped(batch, next(exact), path, first)
            yield first, batch
            first += batch.num_rows

    old_times = _old_times(file)
    held = columns.held_bytes(file.schema_arrow.names)
    return Table(rows=file.metadata.num_rows, schema=file.schema_arrow, held_bytes=held, batches=batches)


def _old_times(file: "ParquetFile") -> frozenset[str]:
    """Return the columns of time stamps as INT96, which pyarrow reads as nanoseconds: from 2262 on as other times."""
    columns = map(file.schema.column, range(len(file.schema)))
    return frozenset(one.path.split(".")[0] for one in columns if one.physical_type == "INT96" and "." not in one.path)


def _opened(path: str, times: str | None = None) -> "ParquetFile":
    """Open a file; `times` is the unit of time stamps as INT96, if not nanoseconds."""
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import parquet  # noqa: PLC0415

    with decoding(path, "Parquet"):
        stream = pa.OSFile(os.fsencode(regular_path(path)))
        return parquet.ParquetFile(
            stream, buffer_size=_BUFFER_BYTES, pre_buffer=False, coerce_int96_timestamp_unit=times
        )


def _refuse_wrapped(batch: "pa.RecordBatch", exact: "pa.RecordBatch", path: str, first: int) -> None:
    """Raise OrtdeployError for a time that nanoseconds cannot count; `exact` has the same rows in microseconds."""
    import pyarrow as pa  # noqa: PLC0415

    for name in exact.schema.names:
        nanoseconds, microseconds = (
            one.column(name).view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False) for one in (batch, exact)
        )
        wrapped = np.flatnonzero(nanoseconds // 1000 != microseconds)
        if len(wrapped):
            place = int(wrapped[0])
            raise OrtdeployError(
                f"{path}: row {first + place}: {name} is {exact.column(name)[place]}. INT96 is read as nanoseconds, "
                "which end in 2262. Write the column as microseconds (in Spark: outputTimestampType TIMESTAMP_MICROS)"
            )


class _Columns:
    """Decides how much of a file's columns is decoded at once."""

    def __init__(self, path: str, metadata: "FileMetaData", limit: int | None) -> None:
        self._path, self._metadata = path, metadata
        self._most = room(limit) // _SHARE

    def held_bytes(self, names: Sequence[str]) -> int:
        """Return the bytes of the largest pages of some columns together, without those of small columns."""
        return max((sum(map(self._largest_page, group)) for group in self._groups(names)), default=0)

    def rows_at_once(self, names: Sequence[str]) -> int:
        """Return how many rows to decode at once, by the size of the rows of the largest group."""
        groups = [self._metadata.row_group(number) for number in range(self._metadata.num_row_groups)]
        row_bytes = max((group.total_byte_size // max(group.num_rows, 1) for group in groups), default=0)
        most = max(1, min(MOST_ROWS, MOST_BYTES // max(row_bytes, 1)))
        value = max((self._largest_value(chunk, most) for group in self._groups(names) for chunk in group), default=0)
        return max(1, min(most, self._most // max(value, 1)))

    def _groups(self, names: Sequence[str]) -> "Iterator[list[ColumnChunkMetaData]]":
        """Yield the wanted columns of each row group."""
        wanted = frozenset(names)
        for number in range(self._metadata.num_row_groups):
            group = self._metadata.row_group(number)
            chunks = map(group.column, range(group.num_columns))
            yield [chunk for chunk in chunks if chunk.path_in_schema.split(".")[0] in wanted or not wanted]

    def _largest_page(self, chunk: "ColumnChunkMetaData") -> int:
        if chunk.total_uncompressed_size <= self._most:
            return 0
        with self._reading() as file:
            return max((page.size for page in pages(file, *_place(chunk))), default=0)

    def _largest_value(self, chunk: "ColumnChunkMetaData", rows: int) -> int:
        """Return the size of the largest text in a dictionary, if `rows` of them could be too much."""
        is_text = chunk.physical_type == "BYTE_ARRAY" and chunk.has_dictionary_page
        if not is_text or chunk.total_uncompressed_size * rows <= self._most:
            return 0
        with self._reading() as file:
            first = next(pages(file, *_place(chunk)), None)
        return first.size if first is not None and first.is_dictionary else 0

    @contextmanager
    def _reading(self) -> Iterator[IO[bytes]]:
        with decoding(self._path, "Parquet"), open_unbuffered(self._path) as file:
            yield file


def _place(chunk: "ColumnChunkMetaData") -> tuple[int, int]:
    """Return where the pages of a column begin and end."""
    first = [chunk.data_page_offset, *([chunk.dictionary_page_offset] if chunk.has_dictionary_page else [])]
    return min(first), min(first) + chunk.total_compressed_size


@contextmanager
def open_source(files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[TableSource]:
    """Open Parquet files as one table, one after the other."""
    yield TableSource(files, folder, wanted, _open)
