"""ONNX TensorProto files: one .pb file holds the rows of one tensor along its first dimension, column `array`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ortdeploy.facts.data import InputFacts
from ortdeploy.files.onnx_data import read_tensor
from ortdeploy.sources.arrays import COLUMN, ArraysError, ArraySource, as_rows, probe_arrays
from ortdeploy.sources.protocol import Wanted
from ortdeploy.tensors.columns import Array

SUFFIXES = (".pb",)
FIRST_ROWS = 64
PACKAGE = None


def probe(files: Sequence[str], facts: InputFacts) -> InputFacts:
    """Read the tensors."""
    return probe_arrays(files, facts, _read)


def _read(path: str) -> Array:
    try:
        return as_rows(read_tensor(path), path)
    except (ValueError, OSError) as error:
        raise ArraysError(f"{path} cannot be read as a TensorProto: {error}") from error


@contextmanager
def open_source(files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[ArraySource]:
    """Open the files as one run of rows; one file is held at a time."""
    yield ArraySource(files, folder, wanted, lambda path: {COLUMN: _read(path)})
