"""Image files, one a row: column `pixels`, uint8 (16-bit grey: uint16) in NHWC, one channel or three.

Decoded by Pillow. Palettes, transparency and CMYK become RGB; the orientation in EXIF is not applied.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from ortdeploy.facts.data import InputFacts
from ortdeploy.facts.problems import Package
from ortdeploy.sources.protocol import Wanted
from ortdeploy.sources.rows import FilePerRow, RawRow, RowError
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.types import ROWS, TensorType

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
FIRST_ROWS = 4
PACKAGE = Package(module="PIL", name="Pillow", extra="images")

_GREY_16 = ("I;16", "I;16L", "I;16B", "I;16N", "I")


def probe(files: Sequence[str], facts: InputFacts) -> InputFacts:
    """One row a file; sizes and channels differ from file to file."""
    pixels = TensorType("uint8", (ROWS, None, None, None), "NHWC")
    return replace(facts, columns={"pixels": pixels}, rows=len(files))


def _decode(raw: RawRow) -> dict[str, Any]:
    from PIL import Image  # noqa: PLC0415  an extra: only who reads images needs it

    try:
        with warnings.catch_warnings(), Image.open(raw.value) as image:
            warnings.simplefilter("ignore")  # Pillow's remarks about odd files would stand between the log lines
            return {"pixels": _pixels(image)}
    except FileNotFoundError as error:
        raise RowError("the file is gone", "vanished-file") from error
    except OSError as error:
        if error.errno is None:  # Pillow's own complaint about the content
            raise RowError(f"not an image that can be decoded: {error}", "not-an-image") from error
        raise RowError(f"the file cannot be read: {error.strerror}", "unreadable-file", transient=True) from error
    except Exception as error:  # Pillow's decoders raise whatever the broken file makes them trip over
        raise RowError(f"not an image that can be decoded: {error}", "not-an-image") from error


def _pixels(image: Any) -> Array:
    if image.mode in _GREY_16:
        return np.asarray(image).astype(np.uint16)[..., None]
    if image.mode == "L":
        return np.asarray(image)[..., None]
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


@contextmanager
def open_source(files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[FilePerRow]:
    """Open image files, one row each."""
    yield FilePerRow(files, folder, wanted, _decode)
