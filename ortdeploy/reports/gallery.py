"""Chooses committed rows for a page, and shows them with their results: pictures with boxes, text, recordings.

A row is read from its part. Its input file is found by the row's path or, if no row of the part failed, by its place in
the part. Nothing here ends a run: what cannot be shown is left out.
"""

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import OWN
from ortdeploy.files.csv_text import read_cells
from ortdeploy.files.decoding import is_a_bug
from ortdeploy.files.opening import open_text, regular_path
from ortdeploy.files.urls import is_url
from ortdeploy.ledger.records import OutputRecord, Part
from ortdeploy.plan.steps import RunJob
from ortdeploy.reports.illustrations import Example, Picture
from ortdeploy.sinks.drawn import Drawing, drawing_of, is_boxes
from ortdeploy.sources.catalogue import FILE_IS_ROW, RECORDINGS, SOURCES
from ortdeploy.sources.image import EXIF
from ortdeploy.sources.protocol import Wanted
from ortdeploy.tensors.types import LINE_COLUMNS
from ortdeploy.terminal_text import shortened

_VIDEO = "video"
_MOST_PARTS = 4
_MOST_EXAMPLES = 12
_MOST_ROWS = 8  # of a part
_LARGEST_PART = 64 * 1024 * 1024
_LARGEST_INPUT = 32 * 1024 * 1024
_SIDE = 320  # pixels of the longest side
_MOST_BYTES = 240_000  # of all pictures, as text
_PIECES = 160
_MOST_SIGNS = 160
_MOST_VALUES = 12
_MOST_ELEMENTS = 6


def examples(folder: Path, root: str, record: OutputRecord, step: RunJob) -> tuple[Example, ...]:
    """Return rows of an output `folder` for a page; `root` is the manifest's folder. Exceptions of libraries pass."""
    found: list[Example] = []
    room = _MOST_BYTES
    parts = _spread([one for one in record.parts if _can_be_read(folder, one, step)], _MOST_PARTS)
    for part in parts:
        for row in _rows_of(folder, part, step, min(_MOST_EXAMPLES // len(parts), _MOST_ROWS)):
            one = _example(row, Path(root), folder, step)
            room -= len(one.picture.url) if one.picture else 0
            if room >= 0:
                found.append(one)
    return tuple(found)


def _can_be_read(folder: Path, part: Part, step: RunJob) -> bool:
    path = folder / str(part.file)
    is_there = part.file is not None and bool(part.committed) and path.is_file()
    return is_there and step.output.format in SOURCES and path.stat().st_size <= _LARGEST_PART


def _spread(parts: Sequence[Part], most: int) -> list[Part]:
    """Return at most `most` parts: the first, the last, and some between them."""
    if len(parts) <= most:
        return list(parts)
    return [parts[round(place * (len(parts) - 1) / (most - 1))] for place in range(most)]


def _rows_of(folder: Path, part: Part, step: RunJob, most: int) -> Iterator[dict[str, Any]]:
    """Yield the first rows of a part by column, with `_file`, the input file of the row, if it is known."""
    module = SOURCES[step.output.format]
    of_lines = LINE_COLUMNS if step.output.explode else ()
    keys = tuple(dict.fromkeys((*step.input.key, *of_lines)))
    results = dict(zip(step.output.columns, step.output.dtypes, strict=True))
    wanted = Wanted(dtypes={name: None if name in step.output.files else results[name] for name in results}, keys=keys)
    if step.output.format == "csv":  # a column of vectors is several of its file
        wanted = Wanted(dtypes={}, keys=_header(folder / str(part.file)), dialect=OWN)
    with module.open_source([str(folder / str(part.file))], str(folder), wanted) as source:
        block = next(source.blocks(0, iter([most])), None)
    if block is None:
        return
    for place in range(min(len(block.rows), most)):
        row = {name: _plain(column[place]) for name, column in block.columns.items() if not name.startswith("\0")}
        yield row | {"_file": _input_of(row, part, part.start + place, step)}


def _header(path: Path) -> tuple[str, ...]:
    """Return the names of the columns of a CSV file."""
    with open_text(path, newline="") as file:
        return tuple(next(read_cells(file), ()))


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _input_of(row: Mapping[str, Any], part: Part, place: int, step: RunJob) -> str | None:
    """Return the input file of a row, for formats of which each file is a row, and for videos."""
    if step.input.format not in {*FILE_IS_ROW, _VIDEO}:
        return None
    if isinstance(row.get("path"), str) and "path" in step.input.key:
        return str(row["path"])
    if step.input.format == _VIDEO:
        return None
    number = row.get("row") if "row" in step.input.key else None
    if number is None and (part.failed or part.skipped or part.revisions or step.output.explode):
        return None
    at = int(place if number is None else number) - step.input.files_from
    return step.input.files[at].path if 0 <= at < len(step.input.files) else None


def _example(row: Mapping[str, Any], root: Path, folder: Path, step: RunJob) -> Example:
    """Return a row for the page; without the picture or the recording if its file was cut or replaced since."""
    source = row["_file"]
    name = source or ", ".join(f"{key} {_short(row[key])}" for key in step.input.key if key in row) or "a row"
    hidden = {"_file", "path", *step.output.files}
    values = {key: _text(row[key]) for key in islice((key for key in row if key not in hidden), _MOST_VALUES)}
    shown = Example(name=str(name), values=values)
    made = next(filter(_is_small, (folder / str(row[column]) for column in step.output.images if column in row)), None)
    path = root / source if source and not is_url(source) else None
    try:
        if made is not None:
            return replace(shown, picture=_picture(made, Drawing(), upright=False))
        return _with_input(shown, path, row, step) if path is not None and _is_small(path) else shown
    except Exception as error:
        if is_a_bug(error):
            raise
        return shown


def _with_input(shown: Example, path: Path, row: Mapping[str, Any], step: RunJob) -> Example:
    """Return an example with the picture, the frame or the recording that the row was made of."""
    if step.input.format == "image" or (step.input.format == _VIDEO and "frame" in row):
        boxes = next((key for key in step.output.columns if is_boxes(row.get(key))), None)
        found = {} if boxes is None else {boxes: str(len(row[boxes]))}
        drawing = drawing_of(row, step.output.columns)
        if step.input.format == _VIDEO:
            picture = _shown(_frame(path, row["frame"]), drawing)
        else:
            picture = _picture(path, drawing, upright=EXIF.of(step.input.settings))
        return replace(shown, values={**shown.values, **found}, picture=picture)
    if step.input.format in RECORDINGS:
        envelope, seconds = _envelope(path, step.input.format)
        return replace(shown, envelope=envelope, seconds=seconds)
    return shown


def _is_small(path: Path) -> bool:
    return path.is_file() and path.stat().st_size <= _LARGEST_INPUT


def _picture(path: Path, drawing: Drawing, *, upright: bool) -> Picture:
    """Return a small copy of a picture of a file, with the outlines of what was found in it. Raises OSError."""
    from PIL import Image, ImageOps  # noqa: PLC0415  an extra, which the pictures were read with

    with Image.open(regular_path(path)) as opened:
        return _shown((ImageOps.exif_transpose(opened) if upright else opened).convert("RGB"), drawing)


def _frame(path: Path, number: int) -> Any:
    """Return a frame of a video as a picture. Raises OSError, ValueError, and ImportError without Pillow."""
    from PIL import Image  # noqa: PLC0415  as above

    with SOURCES[_VIDEO].open_source([str(path)], str(path.parent), Wanted(dtypes={"pixels": None})) as source:
        block = next(source.blocks(number, iter([1])), None)
    if block is None or not len(block.rows) or block.columns["pixels"][0].dtype != np.uint8:
        raise ValueError("the frame cannot be shown")
    pixels = block.columns["pixels"][0]
    return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).convert("RGB")


def _shown(image: Any, drawing: Drawing) -> Picture:
    """Return a small copy of a picture, with the outlines of what was found in it."""
    width, height = image.size
    small = image.copy()
    small.thumbnail((_SIDE, _SIDE))
    file = io.BytesIO()
    exact = max(image.size) <= _SIDE // 4  # of such a picture each pixel is to be seen
    small.save(file, format="PNG" if exact else "JPEG", **({} if exact else {"quality": 72}))
    kind = "png" if exact else "jpeg"
    url = f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"
    return Picture(url=url, width=width, height=height, outlines=drawing.outlines, labels=drawing.labels)


def _envelope(path: Path, form: str) -> tuple[tuple[tuple[float, float], ...], float]:
    """Return the smallest and largest samples of pieces of a recording's first channel, and its length in seconds."""
    with SOURCES[form].open_source([str(path)], str(path.parent), Wanted(dtypes={"samples": None, "rate": None})) as it:
        block = next(it.blocks(0, iter([1])), None)
    if block is None or not len(block.rows):
        return (), 0.0
    samples = np.asarray(block.columns["samples"][0], np.float32)
    samples = samples[0] if samples.ndim > 1 else samples
    pieces = [one for one in np.array_split(samples, _PIECES) if one.size]
    seconds = samples.size / float(block.columns["rate"][0])
    return tuple((float(one.min()), float(one.max())) for one in pieces), seconds


def _text(value: Any) -> str:
    return shortened(_short(value), _MOST_SIGNS)


def _short(value: Any) -> str:
    """Return a value as text for people: a list as its first elements and its length, a number with four digits."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        more = f", … ({len(value)})" if len(value) > _MOST_ELEMENTS else ""
        return f"[{', '.join(map(_short, islice(value, _MOST_ELEMENTS)))}{more}]"
    return str(value)


def why_not(error: Exception) -> str:
    """Return in words why rows cannot be shown."""
    return str(error) if isinstance(error, OrtdeployError | OSError) else f"{type(error).__name__}: {error}"
