"""Writes images and recordings as files beside the part, one a row and column; the rows get the names of the files."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ortdeploy.files.atomic import open_whole
from ortdeploy.files.walk import held_folder
from ortdeploy.plan.recording import Recording
from ortdeploy.tensors.columns import Column

_PNG = "png"
IMAGES, RECORDINGS = "images", "recordings"
"""The folders of the files."""


def write_files(
    folder: Path, name: str, rows: Sequence[int], column: Column, roots: Sequence[str], recording: Recording | None
) -> Column:
    """Write one file for each row, and return the names relative to the folder. Raises OSError, ValueError.

    `column` is [rows, …] or a list of such values: a `recording`, or else an image [height, width, …]. A row's number
    is in the name of its file, so a run that continues writes the same files again. The files' folder may be a link
    that stays below the roots.
    """
    suffix = _PNG if recording is None else recording.format
    names: list[str] = []
    for row, value in zip(rows, column, strict=True):
        file_name = row_file(name, row, suffix)
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


def row_file(name: str, row: int, suffix: str) -> str:
    """Return the name of a row's file, relative to the output's folder."""
    return f"{IMAGES if suffix == _PNG else RECORDINGS}/{name}-{row:08d}.{suffix}"


def file_names(suffixes: Mapping[str, str], row: int) -> Iterator[str]:
    """Yield the names of a row's files; `suffixes` are those of the columns that are written as files."""
    return (row_file(name, row, suffix) for name, suffix in suffixes.items())
