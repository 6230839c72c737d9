"""Raw tensors: little-endian numbers of one row after the other, without a header; column `array`.

The files do not tell their type. The input's dtype: and shape: do; the shape is that of one row.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from ortdeploy.facts.data import InputFacts
from ortdeploy.facts.problems import Problem
from ortdeploy.files.opening import regular_path
from ortdeploy.sources.arrays import ArraysError, ArraySource, probe_arrays
from ortdeploy.sources.mapped import open_mapped
from ortdeploy.sources.protocol import Wanted
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.elements import numpy_dtype
from ortdeploy.tensors.types import TensorType

SUFFIXES = (".raw", ".bin")
FIRST_ROWS = 64
PACKAGE = None
SETTINGS = ()


def probe(files: Sequence[str], facts: InputFacts) -> InputFacts:
    """Check the files' sizes against the manifest's type."""
    if facts.row_type is None:
        detail = "Raw tensors say nothing of their type. Add dtype: and shape: (of one row) to the input."
        return replace(facts, problem=Problem(kind="untyped", detail=detail))
    return probe_arrays(files, facts, partial(_map, row_type=facts.row_type))


def _map(path: str, row_type: TensorType) -> Array:
    """Map a file. Raises ArraysError if it is not a whole number of rows."""
    dtype = numpy_dtype(row_type.dtype or "").newbyteorder("<")
    shape = tuple(size for size in row_type.shape or () if isinstance(size, int))
    row_bytes = math.prod(shape) * dtype.itemsize
    try:
        size = Path(path).stat().st_size
        if size % row_bytes:
            raise ArraysError(f"{path} has {size} bytes, which are not whole rows of {row_bytes} bytes ({row_type})")
        rows = size // row_bytes
        return np.memmap(regular_path(path), dtype, "r", shape=(rows, *shape)) if rows else np.empty((0, *shape), dtype)
    except OSError as error:
        raise ArraysError(f"{path} cannot be read: {error.strerror}") from error


@contextmanager
def open_source(files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[ArraySource]:
    """Open the files as one run of rows; one file is open at a time."""
    with open_mapped(files, folder, wanted, partial(_map, row_type=wanted.row_type or TensorType())) as source:
        yield source
