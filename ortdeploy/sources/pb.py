"""ONNX TensorProto files: one .pb file holds the rows of one tensor along its first dimension, column `array`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from ortdeploy.facts.data import InputFacts
from ortdeploy.files.decoding import decoding
from ortdeploy.files.memory_budget import check_room
from ortdeploy.sources.arrays import COLUMN, ArraySource, check_rows, probe_arrays
from ortdeploy.sources.protocol import Wanted
from ortdeploy.tensors.columns import Array

SUFFIXES = (".pb",)
FIRST_ROWS = 64
PACKAGE = None
SETTINGS = ()

_HELD = 3
"""Memory for a tensor while it is read, in units of its file's size: the bytes, the message, the array."""


def probe(files: Sequence[str], facts: InputFacts) -> InputFacts:
    """Read the tensors."""
    held = max((_HELD * Path(path).stat().st_size for path in files), default=0)
    return replace(probe_arrays(files, facts, partial(_read, limit=facts.memory_limit)), held_bytes=held)


def _read(path: str, limit: int | None) -> Array:
    from ortdeploy.files.onnx_data import read_tensor  # noqa: PLC0415  brings onnx

    check_room(_HELD * Path(path).stat().st_size, path, limit)
    with decoding(path, "a TensorProto"):
        array = read_tensor(path)
    check_rows(array, path)
    return array


@contextmanager
def open_source(files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[ArraySource]:
    """Open the files as one run of rows; one file is held at a time."""
    yield ArraySource(files, folder, wanted, lambda path: {COLUMN: _read(path, wanted.memory_limit)})
