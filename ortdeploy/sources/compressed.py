"""Opens files that are compressed, by their suffix."""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import BinaryIO, cast

from ortdeploy.files.stored_file import open_plain

_OPEN: Mapping[str, Callable[[BinaryIO], object]] = {".bz2": bz2.open, ".gz": gzip.open, ".xz": lzma.open}
BROKEN = (EOFError, lzma.LZMAError, zlib.error)
"""What the libraries raise, beside OSError, over content that cannot be decompressed."""


@contextmanager
def open_compressed(path: str, suffix: str) -> Iterator[BinaryIO]:
    """Open a file for reading, decompressed."""
    with open_plain(path) as packed, cast("BinaryIO", _OPEN[suffix](packed)) as file:
        yield file
