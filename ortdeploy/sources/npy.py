"""NumPy arrays: one .npy file holds the rows of one array along its first dimension. Never loaded whole."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from msgspec.structs import replace

from ortdeploy.facts.data import InputFacts
from ortdeploy.files.numpy_files import map_npy
from ortdeploy.sources.arrays import ArraySource, check_rows, probe_arrays
from ortdeploy.sources.mapped import held_bytes, open_mapped
from ortdeploy.sources.protocol import Wanted
from ortdeploy.tensors.columns import Array

SUFFIXES = (".npy",)
FIRST_ROWS = 64
PACKAGE = None
SETTINGS = ()


def probe(files: Sequence[str], facts: InputFacts) -> InputFacts:
    """Read the headers; all files must hold rows of one shape and type."""
    held = 0

    def look(path: str) -> Array:
        nonlocal held
        array = _map(path)
        held = max(held, held_bytes(array))
        return array

    return replace(probe_arrays(files, facts, look), held_bytes=held)


def _map(path: str) -> Array:
    """Map a file to look at it. Raises OrtdeployError."""
    array = map_npy(path)
    check_rows(array, path)
    return array


@contextmanager
def open_source(files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[ArraySource]:
    """Open the files as one run of rows; one file is open at a time."""
    with open_mapped(files, folder, wanted, _map) as source:
        yield source
