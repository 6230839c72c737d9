"""Image files, one a row: column `pixels`, uint8 (16-bit grey: uint16) in NHWC, one channel or three.

Beside it are `height` and `width`, int64. Decoded by Pillow. Palettes, transparency and CMYK become RGB; a picture is
turned as its EXIF orientation says, unless the manifest says `exif: false`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import InputFacts
from ortdeploy.facts.problems import Package
from ortdeploy.files.decoding import is_a_bug, reason_of
from ortdeploy.files.room import check_room
from ortdeploy.sources.mistaken import what_it_is
from ortdeploy.sources.protocol import Wanted
from ortdeploy.sources.rows import FilePerRow, RawRow, RowError
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.types import ROWS, TensorType

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
FIRST_ROWS = 4
PACKAGE = Package(module="PIL", name="Pillow", extra="images")

_DECODED = 12
"""What an image takes while it is decoded, in bytes a pixel: Pillow's picture, turned and converted, and the array."""

_SIDES = ("height", "width")

_ORIENTATION = 0x0112
"""The EXIF tag that says how a picture is to be turned."""

_GREY_16 = ("I;16", "I;16L", "I;16B", "I;16N", "I")


def probe(files: Sequence[str], facts: InputFacts) -> InputFacts:
    """Probe images: one row per file; sizes and channels differ from file to file."""
    pixels, side = TensorType("uint8", (ROWS, None, None, None), "NHWC"), TensorType("int64", (ROWS,))
    columns = {"pixels": pixels, **dict.fromkeys(_SIDES, side)}
    return replace(facts, columns=columns, beside=frozenset(_SIDES), rows=len(files))


def _decode(raw: RawRow, wanted: Wanted, sides: Sequence[str]) -> dict[str, Any]:
    try:
        with _pillow().open(raw.value) as image:
            width, height = image.size
            limit = wanted.memory_limit
            check_room(_DECODED * width * height, lambda: f"an image of {width:,} x {height:,} pixels", limit)
            pixels = _pixels(_upright(image) if wanted.exif else image)
            return {"pixels": pixels, **{side: np.asarray(pixels.shape[_SIDES.index(side)]) for side in sides}}
    except OrtdeployError as error:
        raise RowError(str(error), "too-large") from error
    except FileNotFoundError as error:
        raise RowError("the file is gone", "vanished-file") from error
    except OSError as error:
        if error.errno is None:  # Pillow's own complaint about the content
            raise _undecodable(raw, error) from error
        raise RowError(f"the file cannot be read: {error.strerror}", "unreadable-file", transient=True) from error
    except Exception as error:  # Pillow's decoders raise whatever the broken file makes them trip over
        if is_a_bug(error):
            raise
        raise _undecodable(raw, error) from error


@cache
def _pillow() -> Any:
    """Return Pillow's module of images; to import it for each picture takes longer than to run a small one."""
    from PIL import Image  # noqa: PLC0415  an extra: only who reads images needs it

    return Image


def _undecodable(raw: RawRow, error: Exception) -> RowError:
    reason = f"{reason_of(error)}{what_it_is('image', raw.value)}"
    return RowError(f"not an image that can be decoded: {reason}", "not-an-image")


def _upright(image: Any) -> Any:
    """Return a picture turned as its EXIF orientation says."""
    image.load()  # of a TIFF, Pillow turns what it loads, and then says that nothing is to be turned
    method = _turns().get(image.getexif().get(_ORIENTATION))
    return image if method is None else image.transpose(method)


@cache
def _turns() -> Mapping[int, Any]:
    """Return what turns a picture upright, by the number of its EXIF orientation."""
    turn = _pillow().Transpose
    return {
        2: turn.FLIP_LEFT_RIGHT,
        3: turn.ROTATE_180,
        4: turn.FLIP_TOP_BOTTOM,
        5: turn.TRANSPOSE,
        6: turn.ROTATE_270,
        7: turn.TRANSVERSE,
        8: turn.ROTATE_90,
    }


def _pixels(image: Any) -> Array:
    if image.mode in _GREY_16:
        return np.asarray(image).astype(np.uint16)[..., None]
    if image.mode == "L":
        return np.asarray(image)[..., None]
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


@contextmanager
def open_source(files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[FilePerRow]:
    """Open image files, one row each."""
    sides = [side for side in _SIDES if side in {*wanted.dtypes, *wanted.keys, *wanted.missing}]
    yield FilePerRow(files, folder, wanted, partial(_decode, wanted=wanted, sides=sides))
