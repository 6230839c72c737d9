"""NumPy archives: each array of a .npz is a column, its first dimension the rows. One archive is held at a time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import InputFacts
from ortdeploy.facts.problems import Problem
from ortdeploy.files.numpy_files import read_npz
from ortdeploy.sources.arrays import ArraysError, ArraySource, as_rows, tensor_type
from ortdeploy.sources.protocol import Wanted
from ortdeploy.tensors.columns import Array

SUFFIXES = (".npz",)
FIRST_ROWS = 64
PACKAGE = None


def probe(files: Sequence[str], facts: InputFacts) -> InputFacts:
    """Read every archive once: its arrays must have equally many rows, and all archives the same arrays."""
    columns = None
    rows = 0
    for path in files:
        try:
            arrays = _load(path)
        except OrtdeployError as error:
            return replace(facts, problem=Problem(kind="unreadable", detail=f"{error}."))
        types = {name: tensor_type(array) for name, array in arrays.items()}
        if columns is not None and types != columns:
            detail = f"{path} does not hold the same arrays as {files[0]}."
            return replace(facts, problem=Problem(kind="unreadable", detail=detail))
        columns = types
        rows += len(next(iter(arrays.values())))
    return replace(facts, columns=columns or {}, rows=rows)


def _load(path: str) -> dict[str, Array]:
    arrays = {name: as_rows(array, f"{name} of {path}") for name, array in read_npz(path).items()}
    counts = {len(array) for array in arrays.values()}
    if len(counts) != 1:
        found = ", ".join(f"{name} {len(array)}" for name, array in arrays.items())
        raise ArraysError(f"{path} does not hold arrays of one number of rows ({found or 'it is empty'})")
    return arrays


@contextmanager
def open_source(files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[ArraySource]:
    """Open the archives one after the other."""
    yield ArraySource(files, folder, wanted, _load)
