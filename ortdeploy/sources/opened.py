"""Opens input files, also compressed ones: .gz, .bz2 and .xz are read as what they hold."""

import bz2
import gzip
import lzma
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePath
from typing import BinaryIO, cast
from zlib import error as DeflateError  # noqa: N812  zlib names it so

from ortdeploy.diagnostics import OrtdeployError

COMPRESSED: Mapping[str, Callable[[str], object]] = {".bz2": bz2.open, ".gz": gzip.open, ".xz": lzma.open}
"""How files are opened whose last suffix says that they are compressed."""


def format_suffix(path: str) -> str:
    """Return the suffix that tells a file's format, in small letters: `.csv` of rows.csv.gz."""
    pure = PurePath(path)
    return PurePath(pure.stem).suffix.lower() if is_compressed(path) else pure.suffix.lower()


def is_compressed(path: str) -> bool:
    """Tell whether a file's last suffix says that it is compressed."""
    return PurePath(path).suffix.lower() in COMPRESSED


@contextmanager
def open_binary(path: str, shown: str) -> Iterator[BinaryIO]:
    """Open a file, decompressed. Raises OrtdeployError also for what goes wrong while it is read."""
    opener = COMPRESSED.get(PurePath(path).suffix.lower())
    try:
        with cast("BinaryIO", opener(path)) if opener else open(path, "rb") as file:  # noqa: PTH123  any file name
            yield file
    except OSError as error:  # gzip's and bz2's complaints about content too
        raise OrtdeployError(f"{shown} cannot be read: {error.strerror or error}") from error
    except (EOFError, lzma.LZMAError, DeflateError) as error:
        raise OrtdeployError(f"{shown} cannot be decompressed: {error}") from error
