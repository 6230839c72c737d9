"""The pixels of an opened picture as an array in their own element type, or a RowError for what would get lost.

Pillow makes bytes of most pictures. Of some that means to lose: the low bytes of three channels of 16 bits, bands
beyond the third or fourth, signs. Such pictures fail their row, unless what Pillow holds still has their values.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from ortdeploy.sources.rows import RowError
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.conversion import convert

GROUNDS = ("white", "black")
"""What transparent pictures may be laid on."""

_SAMPLES, _BITS, _SAMPLE_FORMAT, _PHOTOMETRIC = 277, 258, 339, 262
"""Tags of a TIFF: samples a pixel, the bits of each, whether they are unsigned (1), signed (2) or floating (3), and
what they mean: 0 is white (0), black (1), or they are colours."""
_SIGNED, _WHITE_IS_ZERO = 2, 0
_BYTE, _WORD, _LONG = 8, 16, 32
_FACTORS = {"L;2": 85, "L;4": 17}
"""By what Pillow multiplies grey samples of 2 and of 4 bits, to make bytes of them."""
_REMEDY = "write the picture as .npy, or in 8 bits and three channels"


def element_type(image: Any) -> str:
    """Return the element type of a picture that is opened and not yet loaded. Raises RowError for what would get lost.

    Of a loaded or turned picture, Pillow no longer knows how its file has it.
    """
    tags: Mapping[int, Any] = getattr(image, "tag_v2", None) or {}
    if image.mode.startswith(("F", "I")) and tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
        told = "its 0 is white, and Pillow turns such values round in pictures of at most 8 bits alone"
        raise RowError(f"{told}; write it with 0 as black, or as .npy", "white-is-zero")
    if image.mode == "F":
        return "float32"
    if image.mode.startswith("I"):
        return _whole(image, tags)
    bits = _most_bits(image, tags)
    if bits > _BYTE:
        raise RowError(f"it has colours of {bits} bits, and {_BYTE} can be read; {_REMEDY}", "lost-bits")
    if not tags:
        return "uint8"
    samples = tags.get(_SAMPLES, 0)
    if samples > len(image.getbands()):
        raise RowError(f"it has {samples} bands, and {len(image.getbands())} can be read; {_REMEDY}", "lost-bands")
    return "int8" if _is_signed(tags) else "uint8"


def _whole(image: Any, tags: Mapping[int, Any]) -> str:
    """Return the element type of a grey picture of more than 8 bits."""
    bits = max(tags.get(_BITS, (_WORD,)))
    if image.mode == "I" and not tags:
        return "uint16" if image.format in {"PNG", "PPM"} else "int32"  # so Pillow holds those of 16 bits, too
    return f"{'' if _is_signed(tags) else 'u'}int{_LONG if bits > _WORD else _WORD}"


def _is_signed(tags: Mapping[int, Any]) -> bool:
    return _SIGNED in tags.get(_SAMPLE_FORMAT, ())


def _most_bits(image: Any, tags: Mapping[int, Any]) -> int:
    """Return the bits of a sample in the file of a picture of which Pillow makes bytes."""
    if tags:
        return int(max(tags.get(_BITS, (1,))))
    if image.format not in {"PNG", "PPM"}:
        return _BYTE
    told = [one for tile in image.tile for one in (tile[3] if isinstance(tile[3], tuple) else (tile[3],))]
    if image.format == "PPM":
        return max((_WORD for one in told if isinstance(one, int) and one > 255), default=_BYTE)  # noqa: PLR2004
    is_wide = any(isinstance(one, str) and one.endswith(";16B") for one in told)
    return _WORD if is_wide else _BYTE


def scale_transparency(image: Any) -> None:
    """Let the transparent sample of an opened grey PNG be one of its pixels: of these alone, Pillow makes bytes."""
    told = image.info.get("transparency")
    if image.format == "PNG" and image.mode == "L" and isinstance(told, int) and image.tile:
        factor = _FACTORS.get(image.tile[0][3], 1)
        image.info["transparency"] = told * factor if told * factor <= 255 else told  # noqa: PLR2004  already a byte


def pixels_of(image: Any, dtype: str, background: str | None) -> Array:
    """Return the pixels [height, width, channels] of a picture, of which `element_type` has told the type.

    `background` white or black lies behind what is transparent; otherwise the colours stay that are stored there.
    """
    is_laid = background in GROUNDS and image.has_transparency_data
    if dtype in {"uint8", "int8"}:
        if is_laid:
            image = _laid_on(image, str(background))
        pixels = _bytes_of(image, 1) if image.mode == "L" else _bytes_of(_in_colours(image), 3)
        return pixels.view(dtype)
    values = np.asarray(image)
    grey = convert(values.view(dtype) if dtype == "uint32" else values, dtype)[..., None]
    if is_laid:
        ground = np.iinfo(dtype).max if background == "white" else 0
        return np.where(grey == image.info["transparency"], grey.dtype.type(ground), grey)
    return grey


def uses_transparency(image: Any, dtype: str) -> bool:
    """Return whether a pixel of a picture is not opaque."""
    if not image.has_transparency_data:
        return False
    if dtype not in {"uint8", "int8"}:
        return bool((np.asarray(image) == image.info["transparency"]).any())
    least, _ = _with_alpha(image).getchannel("A").getextrema()
    return int(least) < 255  # noqa: PLR2004  opaque


def _laid_on(image: Any, background: str) -> Any:
    """Return a picture on a ground of one colour, grey if it is grey of one channel."""
    module = pillow()
    made = module.alpha_composite(module.new("RGBA", image.size, background), _with_alpha(image))
    return made.convert("L" if image.mode == "L" else "RGB")


def _with_alpha(image: Any) -> Any:
    """Return a picture as red, green, blue and alpha; the colours of La are multiplied by alpha."""
    return (image.convert("LA") if image.mode == "La" else image).convert("RGBA")


def _in_colours(image: Any) -> Any:
    if image.mode == "RGB":
        return image
    return (_with_alpha(image) if image.mode in {"La", "RGBa"} else image).convert("RGB")


def _bytes_of(image: Any, channels: int) -> Array:
    """Return an image's bytes as uint8 [height, width, channels]; numpy's way through Pillow's interface is slower."""
    width, height = image.size
    return np.ndarray((height, width, channels), np.uint8, image.tobytes())


@cache
def pillow() -> Any:
    """Return Pillow's Image module; an import statement for each picture would take longer than running a small one."""
    from PIL import Image  # noqa: PLC0415  an extra, for images only

    return Image
