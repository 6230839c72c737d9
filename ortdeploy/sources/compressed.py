"""Opens files that are compressed, by their suffix."""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Mapping
from typing import BinaryIO, cast

_OPEN: Mapping[str, Callable[[str], object]] = {".bz2": bz2.open, ".gz": gzip.open, ".xz": lzma.open}
BROKEN = (EOFError, lzma.LZMAError, zlib.error)
"""What the libraries raise, beside OSError, over content that cannot be decompressed."""


def open_compressed(path: str, suffix: str) -> BinaryIO:
    """Open a file for reading, decompressed."""
    return cast("BinaryIO", _OPEN[suffix](path))
