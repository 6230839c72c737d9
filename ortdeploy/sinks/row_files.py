"""Writes images and recordings as files beside the part, one a row and column; the rows get the names of the files."""

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from ortdeploy.files.atomic import open_whole
from ortdeploy.files.walk import held_folder
from ortdeploy.plan.recording import Recording
from ortdeploy.tensors.columns import Column

_PNG = "png"
IMAGES, RECORDINGS = "images", "recordings"
"""The folders of the files."""

_ODD = re.compile(r"[^\w.-]")
"""What file systems and stores may not take in a name."""
_LONGEST = 48
"""Characters of an input file's name: 192 bytes at most, of the 255 that names may have."""


def write_files(
    folder: Path,
    name: str,
    rows: Mapping[int, str],
    column: Column,
    roots: Sequence[str],
    recording: Recording | None,
) -> Column:
    """Write one file for each row, and return the names relative to the folder. Raises OSError, ValueError.

    `rows` have the input files that they are named after, or an empty text. `column` is [rows, …] or a list of such
    values: a `recording`, or else an image [height, width, …]. A row's number is in the name of its file, so a run that
    continues writes the same files again. The files' folder may be a link that stays below the roots.
    """
    suffix = _PNG if recording is None else recording.format
    names: list[str] = []
    for (row, source), value in zip(rows.items(), column, strict=True):
        file_name = _row_file(name, row, suffix, source)
        content = _content(name, np.asarray(value), recording)
        with (
            held_folder(folder / Path(file_name).parent, roots, make=True) as held,  # which may have been carried away
            open_whole(held / Path(file_name).name) as file,
        ):
            file.write(content)
        names.append(file_name)
    return names


def _content(name: str, value: np.ndarray, recording: Recording | None) -> bytes:
    if recording is None:
        from ortdeploy.sinks.png import as_png  # noqa: PLC0415  few jobs write images

        return as_png(name, value)
    from ortdeploy.sinks.recordings import as_recording  # noqa: PLC0415  few jobs write recordings

    return as_recording(name, value, recording.rate, recording.format)


def _row_file(name: str, row: int, suffix: str, source: str) -> str:
    """Return the name of a row's file, relative to the output's folder, with that of its input file if it has one."""
    stem = PurePosixPath(source.partition("?")[0]).stem  # what follows in a URL may be a secret
    after = f"-{_ODD.sub('_', stem)[:_LONGEST]}" if stem else ""
    return f"{IMAGES if suffix == _PNG else RECORDINGS}/{name}-{row:08d}{after}.{suffix}"


def file_names(suffixes: Mapping[str, str], rows: Iterable[int], sources: Mapping[int, str]) -> Iterator[str]:
    """Yield the names of files of rows; `suffixes` are those of the columns that are written as files.

    `sources` are the input files that rows are named after.
    """
    return (_row_file(name, row, suffix, sources.get(row, "")) for row in rows for name, suffix in suffixes.items())


def is_of_row(file: str, suffixes: Mapping[str, str], rows: Container[int]) -> bool:
    """Return whether a file in a folder of files is that of one of the rows, whatever input file it is named after."""
    return any(row in rows for _, row in _rows_of(file, suffixes))


def _rows_of(file: str, suffixes: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """Yield the columns and rows of which a file in a folder of files may be."""
    for name, suffix in suffixes.items():
        found = re.fullmatch(rf"{re.escape(name)}-([0-9]{{8,}})(-.*)?\.{suffix}", file)
        if found is not None:
            yield name, int(found[1])


def lost_files(folder: Path, suffixes: Mapping[str, str], rows: Iterable[int]) -> Iterator[str]:
    """Yield the files of rows that are not there, as patterns for what they may be named after."""
    there = {
        one
        for kind in (IMAGES, RECORDINGS)
        for file in (folder / kind).glob("*")
        for one in _rows_of(file.name, suffixes)
    }
    for row in rows:
        for name, suffix in suffixes.items():
            if (name, row) not in there:
                path = PurePosixPath(_row_file(name, row, suffix, ""))
                yield f"{path.with_suffix('')}*.{suffix}"


def named_in(folder: Path, rows: Container[int]) -> Iterator[str]:
    """Yield the names, relative to an output's folder, of the files there that are of rows, or may be."""
    for kind in (IMAGES, RECORDINGS):
        for file in (folder / kind).glob("*"):
            if any(int(one) in rows for one in re.findall(r"-([0-9]{8,})(?=[-.])", file.name)):
                yield f"{kind}/{file.name}"
