"""Writes image columns as PNG files beside the rows, which then name them."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ortdeploy.files.atomic import open_whole
from ortdeploy.tensors.columns import Column

FOLDER = "images"
_GREY, _COLORS = 2, (1, 3, 4)


def write_pictures(folder: Path, name: str, rows: Sequence[int], column: Column) -> Column:
    """Write one picture a row, each whole, and return their names relative to the folder. Raises OSError, ValueError.

    A row's file is named by its number: a run that goes on writes the same files.
    """
    names: list[str] = []
    for row, image in zip(rows, column, strict=True):
        file_name = f"{FOLDER}/{name}-{row:08d}.png"
        (folder / FOLDER).mkdir(exist_ok=True)  # somebody may have carried it away since the last one
        with open_whole(folder / file_name) as file:
            file.write(as_png(name, np.asarray(image)))
        names.append(file_name)
    return names


def as_png(name: str, image: np.ndarray) -> bytes:
    """Return an image of whole numbers from 0 to 255 as PNG. Raises ValueError for any other array."""
    from PIL import Image  # noqa: PLC0415  an extra: only who writes images needs it

    if image.dtype != np.uint8 or not (image.ndim == _GREY or (image.ndim == 3 and image.shape[2] in _COLORS)):  # noqa: PLR2004
        raise ValueError(
            f"{name} is {image.dtype} {list(image.shape)}, and an image is uint8 [height, width, 1, 3 or 4]"
        )
    if image.ndim == 3 and image.shape[2] == 1:  # noqa: PLR2004
        image = image[:, :, 0]
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(file, format="PNG")
    return file.getvalue()
