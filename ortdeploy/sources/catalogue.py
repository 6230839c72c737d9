"""The input formats by name, and what they share: how files are found, probed and opened."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import PLAIN, Dialect, FileState, InputFacts
from ortdeploy.facts.problems import Problem
from ortdeploy.files.decoding import decoding
from ortdeploy.files.urls import is_url
from ortdeploy.modules import Modules, as_it_is
from ortdeploy.results.rows import Block
from ortdeploy.sources.compression import format_suffix
from ortdeploy.sources.files import shown
from ortdeploy.sources.protocol import Source, SourceModule, Wanted
from ortdeploy.sources.settings import WINDOW, identity

if TYPE_CHECKING:
    from ortdeploy.sources.line_windows import Windowing
    from ortdeploy.sources.row_index import KeptIndexes

SOURCES: Modules[SourceModule] = Modules(
    "ortdeploy.sources",
    ("arrow", "audio", "bytes", "csv", "image", "jsonl", "npy", "npz", "parquet", "pb", "raw", "text", "video", "wav"),
    as_it_is,
)

STREAMED = ("csv", "jsonl", "text")
"""Formats that are read from the beginning to the end, and so may be compressed."""

COUNTED = (*STREAMED, "video")
"""Formats of whose files only reading tells how many rows they have."""
FILE_IS_ROW = ("audio", "image", "wav")
"""Formats of which each file is a row: one that holds something else fails alone, within the job's error budget."""

PRINTING = ("audio",)
"""Formats whose native library prints what it notes of damaged files."""
ARRAYS = ("npy", "npz", "pb")
"""Formats whose files are arrays of one element type each, which may differ between files."""

RECORDINGS = ("audio", "wav")
"""Formats whose files have a sample rate."""

TABLES = ("arrow", "csv", "jsonl", "parquet")
"""Formats whose rows are lines of a table, with columns of their own names."""


@cache
def format_of_suffix(suffix: str) -> str | None:
    """Return the format of a suffix; most formats are named like theirs, and then no other format is imported."""
    likely_first = sorted(SOURCES, key=lambda name: f".{name}" != suffix)
    return next((name for name in likely_first if suffix in SOURCES[name].SUFFIXES), None)


def format_by_suffix(patterns: Sequence[str]) -> str | None:
    """Return the format that the suffixes of paths or globs tell; None if they tell none, or several."""
    found = {format_of_suffix(format_suffix(pattern)) for pattern in patterns}
    return found.pop() if len(found) == 1 else None


def indexes_of(
    name: str,
    state_dir: Path,
    folder: str,
    settings: Mapping[str, Any],
    *,
    told: bool = False,
    dialect: Dialect = PLAIN,
) -> "KeptIndexes | None":
    """Return the indexes of an input's files; None for formats whose files say how many rows they have.

    `told`: those that a saved plan has brought count too.
    """
    if name not in COUNTED and WINDOW.of(settings) is None:
        return None
    from ortdeploy.sources.row_index import KeptIndexes  # noqa: PLC0415  only for such files

    chosen = identity(SOURCES[name], settings) if settings else []
    return KeptIndexes(state_dir, folder, name, told=told, dialect=dialect, chosen=chosen)


@contextmanager
def at_hand(
    name: str,
    files: Sequence[str],
    patterns: Sequence[str],
    states: Sequence[FileState] | None = None,
    *,
    ahead: int = 0,
) -> Iterator[Sequence[str]]:
    """Yield files as a format reads them: those on stores are fetched one by one, and of text read in place.

    `patterns` are the paths of the input as the manifest has them, `states` what the plan says of each file. `ahead`:
    how many files are asked for before the first of them is read.
    """
    if not any(map(is_url, patterns or files)):  # only URLs stand for URLs
        yield files
        return
    from ortdeploy.files.in_place import in_place  # noqa: PLC0415  only for stores
    from ortdeploy.files.object_store import fetched  # noqa: PLC0415

    with in_place(files, patterns, states) if name in STREAMED else fetched(files, patterns, ahead=ahead) as there:
        yield there


class Opened(Sequence[str]):
    """A sequence of files that remembers the last one taken, which is the one being read."""

    def __init__(self, files: Sequence[str]) -> None:
        self._files = files
        self.last = ""

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[str]:
        for path in self._files:
            self.last = path
            yield path

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return self._files[index]
        self.last = self._files[index]
        return self.last


def look_at(name: str, files: Sequence[str], facts: InputFacts) -> InputFacts:
    """Return the facts completed with what the files hold, or with what is wrong with one of them."""
    opened = Opened(files)
    try:
        with decoding(lambda: opened.last, name):
            windows = windowing_of(facts.settings)
            if windows is None:
                return SOURCES[name].probe(opened, facts)
            seen = SOURCES[name].probe(opened, replace(facts, carried=windows.carried_of_lines(facts.carried)))
        return windows.of_facts(replace(seen, carried=facts.carried))
    except OrtdeployError as error:
        return replace(facts, problem=Problem(kind="unreadable", detail=f"{error}."))


@contextmanager
def open_input(name: str, files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[Source]:
    """Open files of a format. Reading them raises OrtdeployError with the file's name, whatever is wrong with them."""
    opened = Opened(files)
    windows = windowing_of(wanted.settings)
    module = SOURCES[name]
    with (
        module.open_source(opened, folder, wanted)
        if windows is None
        else windows.open(module, opened, folder, wanted) as source
    ):
        yield _Guarded(source, name, opened, folder)


def windowing_of(settings: Mapping[str, Any]) -> "Windowing | None":
    """Return which lines of a table are a row; None if each of them is."""
    if WINDOW.of(settings) is None:
        return None
    from ortdeploy.sources.line_windows import windowing  # noqa: PLC0415  few tables are read so

    return windowing(WINDOW.of(settings))


class _Guarded(Struct, frozen=True):
    """A source that turns every exception of a decoding library into an OrtdeployError."""

    source: Source
    name: str
    files: Opened
    folder: str

    def blocks(self, start: int, sizes: Iterable[int]) -> Iterator[Block]:
        """Yield the source's blocks."""
        blocks = self.source.blocks(start, sizes)
        while True:
            with decoding(lambda: shown(self.files.last, self.folder), self.name):
                block = next(blocks, None)
            if block is None:
                return
            yield block
