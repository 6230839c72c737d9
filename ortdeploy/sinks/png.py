"""Writes image columns as PNG files beside the part; the rows get the names of the files."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ortdeploy.files.atomic import open_whole
from ortdeploy.files.walk import held_folder
from ortdeploy.tensors.columns import Column

FOLDER = "images"
_GREY, _COLORS = 2, (1, 3, 4)


def write_pictures(folder: Path, name: str, rows: Sequence[int], column: Column, roots: Sequence[str]) -> Column:
    """Write one PNG for each row, and return the names relative to the folder. Raises OSError, ValueError.

    `column` is [rows, height, width, …] or a list of such images. A row's number is in the name of its file, so a run
    that continues writes the same files again. The pictures' folder may be a link that stays below the roots.
    """
    names: list[str] = []
    for row, image in zip(rows, column, strict=True):
        file_name = picture_name(name, row)
        png = as_png(name, np.asarray(image))
        with (
            held_folder(folder / FOLDER, roots, make=True) as held,  # which may have been carried away since the last
            open_whole(held / Path(file_name).name) as file,
        ):
            file.write(png)
        names.append(file_name)
    return names


def picture_name(name: str, row: int) -> str:
    """Return the name of a row's picture, relative to the output's folder."""
    return f"{FOLDER}/{name}-{row:08d}.png"


def as_png(name: str, image: np.ndarray) -> bytes:
    """Return the PNG of an image, uint8 [height, width] or [height, width, 1, 3 or 4]. Raises ValueError for others."""
    from PIL import Image  # noqa: PLC0415  an extra, for images only

    if image.dtype != np.uint8 or not (image.ndim == _GREY or (image.ndim == 3 and image.shape[2] in _COLORS)):  # noqa: PLR2004
        raise ValueError(
            f"{name} is {image.dtype} {list(image.shape)}, and an image is uint8 [height, width, 1, 3 or 4]"
        )
    if image.ndim == 3 and image.shape[2] == 1:  # noqa: PLR2004
        image = image[:, :, 0]
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(file, format="PNG")
    return file.getvalue()
