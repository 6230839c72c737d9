"""Image files, one a row: column `pixels`, uint8 in NHWC, one channel or three.

Grey pictures of more than 8 bits are uint16, int16, uint32, int32 or float32, as their files have them. Beside it are
`height` and `width`, int64. Decoded by Pillow. Palettes, transparency and CMYK become RGB. A picture is turned as its
EXIF orientation says, unless the manifest says `exif: false`, and laid on the manifest's `background`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np
from msgspec.structs import replace

from ortdeploy.facts.data import InputFacts
from ortdeploy.facts.problems import Package
from ortdeploy.files.decoding import reason_of
from ortdeploy.files.memory_budget import check_room
from ortdeploy.sources.file_per_row import FilePerRow
from ortdeploy.sources.format_check import what_it_is
from ortdeploy.sources.pixels import GROUNDS, element_type, pillow, pixels_of, scale_transparency, uses_transparency
from ortdeploy.sources.protocol import TRANSPARENT, Setting, Wanted
from ortdeploy.sources.raw_row import RawRow
from ortdeploy.sources.rows import RowError, as_row_error
from ortdeploy.sources.whole_files import WholeFiles, open_whole
from ortdeploy.tensors.types import ROWS, TensorType

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
FIRST_ROWS = 4
PACKAGE = Package(module="PIL", name="Pillow", extra="images")
EXIF = Setting(name="exif", type=bool, default=True, changing=(False,), files="pictures", trait="EXIF orientation")
"""Whether pictures are turned as their EXIF orientation says."""
BACKGROUND = Setting(name="background", type=str | None, changing=GROUNDS, files="pictures", trait="transparency")
"""What transparent pictures are laid on: white or black; with none, the colours stay that are stored there."""
SETTINGS = (EXIF, BACKGROUND)

_DECODED, _LAID = 12, 24
"""Memory for decoding an image, in bytes a pixel: Pillow's picture, its turned and converted copies, the array; and
beside the ground that a transparent one is laid on."""

_SIDES = ("height", "width")

_ORIENTATION = 0x0112
"""The EXIF tag of the orientation, by which a picture is turned."""

_TOLD_IN_INFO = frozenset({"JPEG", "PNG"})
_OF_EXIF = frozenset({"exif", "Raw profile type exif", "XML:com.adobe.xmp", "xmp"})
"""Where Pillow looks for an orientation in these two formats; asking Pillow takes a tenth of a small picture's time."""

_FORMATS = {b"\x89PN": ("PNG",), b"\xff\xd8\xff": ("JPEG",)}
_SIGN = 3
"""How files of the two usual formats begin: else Pillow tries formats in turn, a tenth of a small picture's time."""


def probe(files: Sequence[str], facts: InputFacts) -> InputFacts:
    """Probe images: one row per file; sizes and channels differ from file to file."""
    pixels, side = TensorType("uint8", (ROWS, None, None, None), "NHWC"), TensorType("int64", (ROWS,))
    columns = {"pixels": pixels, **dict.fromkeys(_SIDES, side)}
    return replace(facts, columns=columns, beside=frozenset(_SIDES), rows=len(files))


def _decode(raw: RawRow, wanted: Wanted, sides: Sequence[str], whole: WholeFiles) -> dict[str, Any]:
    try:
        with open_whole(raw.value, raw.path, whole) as file:
            image = pillow().open(file, formats=_FORMATS.get(file.read(_SIGN)))
            width, height = image.size
            limit = wanted.memory_limit
            pixel = _DECODED if BACKGROUND.of(wanted.settings) is None else _LAID
            check_room(pixel * width * height, lambda: f"an image of {width:,} x {height:,} pixels", limit)
            scale_transparency(image)
            dtype = element_type(image)
            upright = _upright(image) if EXIF.of(wanted.settings) else image
            pixels = pixels_of(upright, dtype, BACKGROUND.of(wanted.settings))
            row = {"pixels": pixels, **{side: np.asarray(pixels.shape[_SIDES.index(side)]) for side in sides}}
            return row | ({TRANSPARENT: uses_transparency(upright, dtype)} if TRANSPARENT in wanted.keys else {})
    except RowError:
        raise
    except Exception as error:  # Pillow's decoders raise whatever the broken file makes them trip over
        raise as_row_error(error, partial(_undecodable, raw)) from error


def _undecodable(raw: RawRow, error: Exception) -> RowError:
    from PIL import UnidentifiedImageError  # noqa: PLC0415  an extra

    # its message names the object that Pillow was given, which is no path
    why = "Pillow cannot tell its format" if isinstance(error, UnidentifiedImageError) else reason_of(error)
    return RowError(f"not an image that can be decoded: {why}{what_it_is('image', raw.value)}", "not-an-image")


def _upright(image: Any) -> Any:
    """Return a picture, turned as its EXIF orientation says."""
    if image.format in _TOLD_IN_INFO and _OF_EXIF.isdisjoint(image.info):
        image.load()  # a PNG may tell of its orientation behind its pixels
        if _OF_EXIF.isdisjoint(image.info):
            return image
    image.load()  # of a TIFF, Pillow turns what it loads, and then says that nothing is to be turned
    method = _turns().get(image.getexif().get(_ORIENTATION))
    return image if method is None else image.transpose(method)


@cache
def _turns() -> Mapping[int, Any]:
    """Return Pillow's transposition that turns a picture upright, by the number of its EXIF orientation."""
    turn = pillow().Transpose
    return {
        2: turn.FLIP_LEFT_RIGHT,
        3: turn.ROTATE_180,
        4: turn.FLIP_TOP_BOTTOM,
        5: turn.TRANSPOSE,
        6: turn.ROTATE_270,
        7: turn.TRANSVERSE,
        8: turn.ROTATE_90,
    }


@contextmanager
def open_source(files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[FilePerRow]:
    """Open image files, one row each."""
    sides = [side for side in _SIDES if side in {*wanted.dtypes, *wanted.keys, *wanted.missing}]
    whole: WholeFiles = {}
    decode = partial(_decode, wanted=wanted, sides=sides, whole=whole)
    yield FilePerRow(files, folder, wanted, decode, "image", whole)
