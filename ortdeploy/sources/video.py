"""Videos, a frame a row: columns `pixels`, uint8 in NHWC, `frame`, its number in the file, and `time` in seconds.

Decoded by PyAV, that is FFmpeg: what it reads. Frames are turned upright as their display matrix says. Grey ones have
one channel, and are uint16 if they have 16 bits; all others have three. `every`, `fps` or `key_frames` choose some.
A file that ends too early has one more row behind its frames, which fails.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import InputFacts
from ortdeploy.facts.problems import Package
from ortdeploy.sources.files import shown
from ortdeploy.sources.protocol import Setting, Wanted
from ortdeploy.sources.raw_row import RawRow
from ortdeploy.sources.row_index import Mark
from ortdeploy.sources.rows import TOO_LARGE, RowError
from ortdeploy.sources.text_rows import TextRows
from ortdeploy.sources.video_decoder import CODE, FrameDecoder
from ortdeploy.sources.video_frames import FrameIndex, check_video, index_of
from ortdeploy.tensors.types import ROWS, TensorType
from ortdeploy.units import split_duration

SUFFIXES = (
    ".3gp",
    ".avi",
    ".flv",
    ".m2ts",
    ".m4v",
    ".mkv",
    ".mov",
    ".mp4",
    ".mpeg",
    ".mpg",
    ".ogv",
    ".ts",
    ".webm",
    ".wmv",
)
FIRST_ROWS = 4
PACKAGE = Package(module="av", name="PyAV", extra="video")
EVERY = Setting(name="every", type=str | float | None, changing=None, files="videos", trait="frames")
"""The time from one frame to the next that is read; with none of these keys, each frame is."""
FPS = Setting(name="fps", type=float | None, changing=None, files="videos", trait="frames")
"""How many frames of a second are read."""
KEY_FRAMES = Setting(name="key_frames", type=bool, default=False, changing=(True,), files="videos", trait="frames")
"""Whether only key frames are read."""
SETTINGS = (EVERY, FPS, KEY_FRAMES)


def probe(files: Sequence[str], facts: InputFacts) -> InputFacts:
    """Look at the headers; how many frames a file has, only its packets tell."""
    for path in files:
        check_video(path)
    columns = {
        "pixels": TensorType("uint8", (ROWS, None, None, None), "NHWC"),
        "frame": TensorType("int64", (ROWS,)),
        "time": TensorType("float64", (ROWS,)),
    }
    return replace(facts, columns=columns, beside=frozenset({"frame", "time"}))


def read_rows(path: str, mark: Mark, *, folder: str, wanted: Wanted) -> Iterator[RawRow]:
    """Yield the chosen frames of a file from a mark on, and a row that fails where it ends too early."""
    name, index = shown(path, folder), index_of(path)
    number = -1
    for number, frame in enumerate(_chosen(index, wanted.settings)):
        if number >= mark.row:
            yield RawRow(name, f" frame {frame}", (path, index, frame), number)
    ends = index.ends or (None if number >= 0 else "it holds no frames")
    if ends is not None:
        yield RawRow(name, "", RowError(f"the video is cut off: {ends}", CODE), number + 1)


def _chosen(index: FrameIndex, settings: Mapping[str, Any]) -> Iterator[int]:
    """Yield the numbers of the frames that are rows: the first one of each interval, counted from the first frame."""
    frames = range(len(index.times))
    every, fps = EVERY.of(settings), FPS.of(settings)
    if KEY_FRAMES.of(settings):
        return iter(index.key_frames)
    if every is None and fps is None:
        return iter(frames)
    number, unit = ("1", 1.0) if every is None else split_duration(every)
    of_interval = index.base * (Fraction(str(fps)) if every is None else 1 / (Fraction(number) * Fraction(str(unit))))
    spans = groupby(frames, lambda frame: (index.times[frame] - index.times[0]) * of_interval // 1)
    return (next(span) for _, span in spans)


class _Frames:
    """Decodes rows, with the file open that holds the last one."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted, self._path = wanted, ""
        self._decoder: FrameDecoder | None = None

    def decode(self, raw: RawRow) -> dict[str, Any]:
        """Return the columns of a frame. Raises RowError."""
        if isinstance(raw.value, RowError):
            raise raw.value
        path, index, frame = raw.value
        try:
            if self._decoder is None or self._path != path:
                self.close()
                self._decoder = FrameDecoder(path, index, self._wanted.memory_limit, self._wanted.threads)
                self._path = path
            pixels = self._decoder.frame(frame)
        except OrtdeployError as error:
            raise RowError(str(error), TOO_LARGE) from error
        return {"pixels": pixels, "frame": np.asarray(frame), "time": np.asarray(index.seconds(frame))}

    def close(self) -> None:
        """Close the file that is open."""
        if self._decoder is not None:
            self._decoder.close()
        self._decoder = None


@contextmanager
def open_source(files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[TextRows]:
    """Open videos, one after the other."""
    frames = _Frames(wanted)
    try:
        yield TextRows(partial(read_rows, folder=folder, wanted=wanted), frames.decode, files, wanted)
    finally:
        frames.close()
