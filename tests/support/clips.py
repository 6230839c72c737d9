"""Video clips, made on the spot by PyAV, and a plain loop over their frames to compare with."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

av = pytest.importorskip("av")


class Codec:
    """How a clip is encoded; `options` are the codec's own."""

    def __init__(self, name: str, suffix: str, pixels: str = "yuv420p", options: Mapping[str, str] = {}) -> None:
        self.name, self.suffix, self.pixels, self.options = name, suffix, pixels, dict(options)


CODECS = {
    "mpeg4": Codec("mpeg4", ".mp4"),
    "mpeg4-avi": Codec("mpeg4", ".avi"),
    "h264": Codec("libx264", ".mp4"),
    "h264-mkv": Codec("libx264", ".mkv"),
    "h264-ts": Codec("libx264", ".ts"),
    "h264-avi": Codec("libx264", ".avi"),
    "open-gop": Codec("libx264", ".mp4", options={"x264opts": "open-gop=1"}),
    "no-times": Codec("libx264", ".h264"),
    "mjpeg": Codec("mjpeg", ".avi", "yuvj420p"),
    "vp8": Codec("libvpx", ".webm", options={"auto-alt-ref": "1", "lag-in-frames": "16"}),
    "vp9": Codec("libvpx-vp9", ".webm", options={"auto-alt-ref": "1", "lag-in-frames": "16"}),
    "mpeg2": Codec("mpeg2video", ".mpg"),
    "ffv1": Codec("ffv1", ".mkv"),
    "10 bits": Codec("ffv1", ".mkv", "yuv422p10le"),
    "4:4:4": Codec("libx264", ".mp4", "yuv444p"),
}


def picture(number: int, height: int = 48, width: int = 64) -> np.ndarray:
    """A picture uint8 [height, width, 3] in which something moves."""
    made = np.zeros((height, width, 3), np.uint8)
    made[:, : number * 3 % width] = (number * 8 % 256, 100, 255 - number * 5 % 256)
    made[number % height] = 255
    return made


def clip(
    path: Path,
    codec: Codec,
    frames: int = 40,
    *,
    times: Sequence[int] | None = None,
    turned: int | None = None,
    pictures: Sequence[np.ndarray] | None = None,
    form: str = "rgb24",
    fast_start: bool = False,
) -> Path:
    """Write a clip of 25 frames a second; `times` are those of its frames, in such units, and `turned` its rotation."""
    codec_known(codec.name)
    shown = [picture(number) for number in range(frames)] if pictures is None else pictures
    options = {"movflags": "faststart"} if fast_start else {}
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream(codec.name, rate=25, options=codec.options)
        stream.height, stream.width = shown[0].shape[:2]
        stream.pix_fmt, stream.codec_context.gop_size = codec.pixels, 12
        if codec.name in {"mpeg4", "libx264", "mpeg2video"}:
            stream.codec_context.max_b_frames = 2
        if turned is not None:
            stream.set_display_rotation(turned)
        for number, one in enumerate(shown):
            frame = av.VideoFrame.from_ndarray(one, format=form)
            frame.pts = number if times is None else times[number]
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def codec_known(name: str) -> None:
    """Skip the test if this build of PyAV cannot encode with a codec."""
    try:
        av.codec.Codec(name, "w")
    except av.error.FFmpegError:
        pytest.skip(f"PyAV has no encoder {name}")


def plain(path: Path, form: str = "rgb24") -> tuple[list[np.ndarray], list[Any]]:
    """The frames of a clip with their times, as a plain loop finds them."""
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
        return [frame.to_ndarray(format=form) for frame in frames], [frame.time for frame in frames]
