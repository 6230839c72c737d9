"""NumPy arrays: one .npy file holds the rows of one array along its first dimension. Mapped, never loaded whole."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from ortdeploy.facts import InputFacts, Problem
from ortdeploy.sources.arrays import ArraysError, ArraySource, as_rows, tensor_type
from ortdeploy.sources.protocol import Array, Wanted

SUFFIXES = (".npy",)
PACKAGE = None

COLUMN = "array"
"""The name of the one column that a .npy file has."""


def probe(files: Sequence[str], facts: InputFacts) -> InputFacts:
    """Read the headers; all files must hold rows of one shape and type."""
    rows = 0
    first: Array | None = None
    for path in files:
        try:
            array = _map(path)
        except ArraysError as error:
            return replace(facts, problem=Problem(kind="unreadable", detail=f"{error}."))
        first = array if first is None else first
        if array.shape[1:] != first.shape[1:] or array.dtype != first.dtype:
            detail = f"{path} holds {tensor_type(array)}, and {files[0]} {tensor_type(first)}."
            return replace(facts, problem=Problem(kind="unreadable", detail=detail))
        rows += len(array)
    return replace(facts, columns={COLUMN: tensor_type(first)} if first is not None else {}, rows=rows)


def _map(path: str) -> Array:
    try:
        with Path(path).open("rb") as file:
            magic = file.read(6)
        if magic != b"\x93NUMPY":
            raise ArraysError(f"{path} is not a .npy file")
        return as_rows(np.load(path, mmap_mode="r", allow_pickle=False), path)
    except (ValueError, EOFError, OSError) as error:
        raise ArraysError(f"{path} cannot be read as .npy: {error}") from error


@contextmanager
def open_source(files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[ArraySource]:
    """Map the files as one run of rows."""
    yield ArraySource(files, folder, wanted, lambda path: {COLUMN: _map(path)})
