"""NumPy archives: each array of a .npz is a column, its first dimension the rows. Arrays are read in pieces.

An array that was saved in Fortran order is held whole, because its rows are not contiguous.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from msgspec.structs import replace

from ortdeploy.facts.data import InputFacts
from ortdeploy.files.memory_budget import check_room
from ortdeploy.files.numpy_archives import Archive, open_npz
from ortdeploy.files.numpy_files import fill
from ortdeploy.sources.arrays import (
    ArraysError,
    ArraySource,
    Rows,
    check_rows,
    joint_tensor_type,
    tensor_type,
    with_columns,
)
from ortdeploy.sources.joined import JoinedFiles
from ortdeploy.sources.mapped import BLOCK_BYTES, BlockedRows
from ortdeploy.sources.protocol import Wanted

SUFFIXES = (".npz",)
FIRST_ROWS = 64
PACKAGE = None
SETTINGS = ()


def probe(files: Sequence[str], facts: InputFacts) -> InputFacts:
    """Read the headers. The arrays of an archive must have equally many rows; archives are joined by their names."""
    joined = JoinedFiles(joint_tensor_type, str)
    rows = held = 0
    for path in files:
        with open_npz(path) as archive:
            _check(archive, path)
            joined.add(path, [(name, tensor_type(header)) for name, header in archive.headers.items()])
            rows += next(iter(archive.headers.values())).shape[0]
            held = max(held, sum(archive.headers[name].nbytes for name in _held_whole(archive)))
    return replace(with_columns(facts, joined), rows=rows, held_bytes=held)


def _check(archive: Archive, path: str) -> None:
    """Raise ArraysError if the arrays are not columns of one number of rows."""
    for name, header in archive.headers.items():
        check_rows(header, f"{name} of {path}")
    counts = {name: header.shape[0] for name, header in archive.headers.items()}
    if len(set(counts.values())) != 1:
        found = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise ArraysError(f"{path} does not hold arrays of one number of rows ({found or 'it is empty'})")


def _held_whole(archive: Archive) -> Iterator[str]:
    """Yield the arrays whose rows are not contiguous."""
    yield from (name for name, one in archive.headers.items() if one.fortran_order and len(one.shape) > 1)


class _Columns(Mapping[str, Rows]):
    """The arrays of an open archive by name, opened when they are asked for."""

    def __init__(self, archive: Archive, path: str, limit: int | None, stack: ExitStack) -> None:
        self._archive, self._path, self._limit, self._stack = archive, path, limit, stack
        self._whole = frozenset(_held_whole(archive))
        self._opened: dict[str, Rows] = {}

    def __len__(self) -> int:
        return len(self._archive.headers)

    def __iter__(self) -> Iterator[str]:
        return iter(self._archive.headers)

    def __getitem__(self, name: str) -> Rows:
        if name not in self._opened:
            self._opened[name] = self._open(name)
        return self._opened[name]

    def _open(self, name: str) -> Rows:
        header = self._archive.headers[name]
        if name in self._whole:
            check_room(header.nbytes, f"{name} of {self._path}, which is in Fortran order and held whole,", self._limit)
            return self._archive.load(name)
        return BlockedRows(header.shape, header.dtype, _Stream(self._archive, name, self._path, self._stack).read)


class _Stream:
    """The bytes of a compressed array, which can only be read forward."""

    def __init__(self, archive: Archive, name: str, path: str, stack: ExitStack) -> None:
        self._open = partial(archive.open, name)
        self._path, self._stack = path, stack
        self._file = stack.enter_context(self._open())
        self._place = 0

    def read(self, offset: int, target: memoryview) -> None:
        """Fill a buffer with the bytes from an offset on."""
        if offset < self._place:
            self._file = self._stack.enter_context(self._open())
            self._place = 0
        passed_over = memoryview(bytearray(min(offset - self._place, BLOCK_BYTES)))
        while self._place < offset:
            piece = passed_over[: offset - self._place]
            fill(self._file, piece, self._path)
            self._place += len(piece)
        fill(self._file, target, self._path)
        self._place += len(target)


@contextmanager
def open_source(files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[ArraySource]:
    """Open the archives one after the other."""
    with ExitStack() as current:

        def load(path: str) -> Mapping[str, Rows]:
            current.close()
            archive = current.enter_context(open_npz(path))
            _check(archive, path)
            return _Columns(archive, path, wanted.memory_limit, current)

        yield ArraySource(files, folder, wanted, load)
