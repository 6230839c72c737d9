"""Draws what a model found in a picture onto a copy of it: boxes with their labels, and a caption."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from ortdeploy.files.atomic import open_whole
from ortdeploy.files.disk import make_folders
from ortdeploy.files.opening import regular_path

_CORNERS = 4
_COLORS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080")
_LEAST_TEXT = 12
_LEAST_SIDE = 320
"""Pixels of the longest side; a smaller picture is enlarged by a whole factor, so that text does not cover it."""


class Drawing(Struct, frozen=True, kw_only=True):
    """What to draw on one picture: outlines of boxes in pixels, [(x, y), …], a label for each box, and a caption."""

    outlines: tuple[tuple[tuple[float, float], ...], ...] = ()
    labels: tuple[str, ...] = ()
    caption: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not self.outlines and not self.caption


def drawing_of(row: Mapping[str, Any], columns: Sequence[str]) -> Drawing:
    """Return what to draw of a row: boxes, labelled with values that come one for each box, or short values."""
    boxes = next((name for name in columns if is_boxes(row.get(name))), None)
    if boxes is None:
        return Drawing(caption="  ".join(f"{name} {_short(row[name])}" for name in columns if _is_short(row.get(name))))
    number = len(row[boxes])
    beside = [row[name] for name in columns if name != boxes and _is_one_each(row.get(name), number)]
    labels = tuple(" ".join(_short(values[place]) for values in beside) for place in range(number))
    return Drawing(outlines=tuple(map(_outline, row[boxes])), labels=labels)


def is_boxes(value: Any) -> bool:
    """Return whether a value is a list of boxes in pixels: left, top, right, bottom, or four corners each."""
    if not isinstance(value, list) or not value:
        return False
    return all(_is_corners(box) or _is_box(box) for box in value)


def _is_box(box: Any) -> bool:
    if not isinstance(box, list) or len(box) != _CORNERS or not all(isinstance(one, int | float) for one in box):
        return False
    left, top, right, bottom = box
    return bool(left <= right and top <= bottom and right > 1)


def _is_corners(box: Any) -> bool:
    return (
        isinstance(box, list)
        and len(box) == _CORNERS
        and all(isinstance(point, list) and len(point) == 2 for point in box)  # noqa: PLR2004  x and y
    )


def _outline(box: list[Any]) -> tuple[tuple[float, float], ...]:
    if _is_corners(box):
        return tuple((float(x), float(y)) for x, y in box)
    left, top, right, bottom = map(float, box)
    return (left, top), (right, top), (right, bottom), (left, bottom)


def _is_one_each(value: Any, number: int) -> bool:
    return isinstance(value, list) and len(value) == number and all(map(_is_short, value))


def _is_short(value: Any) -> bool:
    return isinstance(value, str | float) or (isinstance(value, int) and not isinstance(value, bool))


def _short(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def draw(picture: Path, drawing: Drawing, target: Path, *, upright: bool) -> None:
    """Write a copy of a picture with a drawing on it, as PNG; with `upright`, first turn it by its EXIF orientation.

    Raises OSError if the picture cannot be read, or the copy cannot be written.
    """
    from PIL import Image, ImageDraw, ImageOps  # noqa: PLC0415  an extra, for drawing only

    with Image.open(regular_path(picture)) as opened:
        image = (ImageOps.exif_transpose(opened) if upright else opened).convert("RGB")
    times = max(1, _LEAST_SIDE // max(image.size))
    image = image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
    pen, wide = ImageDraw.Draw(image), max(2, max(image.size) // 300)
    size = max(_LEAST_TEXT, max(image.size) // 50)
    for place, outline in enumerate(drawing.outlines):
        color = _COLORS[place % len(_COLORS)]
        scaled = [(x * times, y * times) for x, y in (*outline, outline[0])]
        pen.line(scaled, fill=color, width=wide)
        _write(pen, scaled[0], drawing.labels[place], color, size)
    _write(pen, (wide, size + wide), drawing.caption, _COLORS[0], size)
    file = io.BytesIO()
    image.save(file, format="PNG")
    make_folders(target.parent)
    with open_whole(target) as out:
        out.write(file.getvalue())


def _write(pen: Any, at: tuple[float, float], text: str, color: str, size: int) -> None:
    """Write a white text on a colored ground above a point; `size` is in pixels."""
    from PIL import ImageFont  # noqa: PLC0415

    if not text:
        return
    font = ImageFont.load_default(size)
    place = at[0], max(at[1] - size, 0)
    pen.rectangle(pen.textbbox(place, text, font=font), fill=color)
    pen.text(place, text, fill="white", font=font)
