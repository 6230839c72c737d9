"""Files as they are, one a row: columns `data`, uint8 [bytes], `size` in bytes, and `path`.

If only the ends of `data` are wanted, only these are read from a large file.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from msgspec.structs import replace

from ortdeploy.facts.data import InputFacts
from ortdeploy.files.memory_budget import check_room
from ortdeploy.files.opening import open_regular
from ortdeploy.sources.file_per_row import FilePerRow
from ortdeploy.sources.protocol import DATA, Wanted
from ortdeploy.sources.raw_row import RawRow
from ortdeploy.sources.rows import RowError, as_row_error
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.types import ROWS, TensorType

SUFFIXES: tuple[str, ...] = ()
FIRST_ROWS = 4
PACKAGE = None
SETTINGS = ()

_COPIES = 2
"""What a file takes while it is read, in units of its bytes: its own, and its row among those of a block."""


def probe(files: Sequence[str], facts: InputFacts) -> InputFacts:
    """Probe files of any content: one row per file."""
    columns = {
        DATA: TensorType("uint8", (ROWS, None)),
        "size": TensorType("int64", (ROWS,)),
        "path": TensorType("string", (ROWS,)),
    }
    return replace(facts, columns=columns, rows=len(files))


def _decode(raw: RawRow, wanted: Wanted) -> dict[str, Any]:
    path = Path(raw.value)
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            row: dict[str, Any] = {"size": np.asarray(size, np.int64)}
            return {**row, DATA: _data(file, size, wanted)} if DATA in {*wanted.dtypes, *wanted.keys} else row
    except RowError:
        raise
    except Exception as error:
        raise as_row_error(error) from error


def _data(file: BinaryIO, size: int, wanted: Wanted) -> Array:
    """Return a file's bytes, uint8 [bytes], or those of its two ends, joined."""
    head, tail = wanted.ends or (size, 0)
    if head + tail >= size:
        head, tail = size, 0
    check_room(_COPIES * (head + tail), f"a file of {size:,} bytes", wanted.memory_limit)
    data = file.read(head)
    if tail:
        file.seek(size - tail)
        data += file.read(tail)
    if len(data) != head + tail:
        raise RowError(f"the file has changed while it was read: it had {size} bytes", "changed-file", transient=True)
    return np.frombuffer(data, np.uint8)


@contextmanager
def open_source(files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[FilePerRow]:
    """Open files, one row each."""
    yield FilePerRow(files, folder, wanted, partial(_decode, wanted=wanted), "bytes")
