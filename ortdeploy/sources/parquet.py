"""Parquet: columns of numbers, text and lists. Read in small batches of rows, so that row groups can be of any size."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ortdeploy.facts.data import InputFacts
from ortdeploy.sources import tables
from ortdeploy.sources.protocol import Wanted
from ortdeploy.sources.tables import Table, TableError, TableSource, probe_tables

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import FileMetaData

SUFFIXES = (".parquet", ".pq")
FIRST_ROWS = tables.FIRST_ROWS
PACKAGE = tables.PACKAGE

MOST_ROWS, MOST_BYTES = 16384, 512 * 1024
"""What is decoded at once: so many rows at most, or so many bytes, but one row in any case."""

_BUFFER_BYTES = 1024 * 1024  # row groups are streamed through a buffer; pre-buffered ones stay until the file is closed


def probe(files: Sequence[str], facts: InputFacts) -> InputFacts:
    """Read the footers."""
    return probe_tables(_open, files, facts)


def _open(path: str) -> Table:
    import pyarrow as pa  # noqa: PLC0415  an extra: only who reads tables needs it
    from pyarrow import parquet  # noqa: PLC0415

    try:
        file = parquet.ParquetFile(pa.OSFile(os.fsencode(path)), buffer_size=_BUFFER_BYTES, pre_buffer=False)
    except (OSError, pa.ArrowException) as error:
        raise TableError(f"{path} cannot be read as Parquet: {error}") from error

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
        try:
            for batch in file.iter_batches(
                _rows_at_once(file.metadata), row_groups=groups, columns=list(names), use_threads=False
            ):
                yield first, batch
                first += batch.num_rows
        except (OSError, pa.ArrowException) as error:
            raise TableError(f"{path} cannot be read: {error}") from error

    return Table(rows=file.metadata.num_rows, schema=file.schema_arrow, batches=batches)


def _rows_at_once(metadata: "FileMetaData") -> int:
    """Return how many rows to decode at once, by the size of the rows of the largest group."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    row_bytes = max((group.total_byte_size // max(group.num_rows, 1) for group in groups), default=0)
    return max(1, min(MOST_ROWS, MOST_BYTES // max(row_bytes, 1)))


@contextmanager
def open_source(files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[TableSource]:
    """Open Parquet files as one table, one after the other."""
    yield TableSource(files, folder, wanted, _open)
