"""Decodes wanted frames of a video file, in the order in which they are shown, and turns them upright."""

import struct
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np

from ortdeploy.files.memory_budget import check_room, room
from ortdeploy.sources.rows import RowError
from ortdeploy.sources.video_frames import FrameIndex, library, opened, words_of
from ortdeploy.tensors.columns import Array

CODE = "not-video"
"""The code of rows that cannot be decoded."""

_DECODED = 48
"""What decoding takes, in bytes a pixel: the frames that a codec refers to, one in colours, and the row's own."""

_WORTH = 8
"""Packets that are decoded in vain rather than to begin anew at a later key frame."""

_FAR = 256
"""Packets that are read in vain rather than to look for a place in the file."""


class FrameDecoder:
    """Decodes frames of one file, each behind the one before.

    FFmpeg would guess what is damaged, and pass on what builds on it. Here such frames fail, up to the next key frame,
    wherever decoding began.
    """

    def __init__(self, path: str, index: FrameIndex, limit: int | None, threads: int) -> None:
        """Open a file. `limit` is the memory limit of the job; `threads` may decode."""
        self._path, self._index, self._limit, self._threads = path, index, limit, threads
        self._stack = ExitStack()
        self._open()

    def close(self) -> None:
        """Close the file."""
        self._stack.close()

    def frame(self, number: int) -> Array:
        """Return the pixels [height, width, channels] of a frame. Raises RowError, OrtdeployError."""
        width, height = self._context.width, self._context.height
        check_room(_DECODED * width * height, lambda: f"a frame of {width:,} x {height:,} pixels", self._limit)
        key = self._index.keys[number]
        if number < self._next:
            self._open()
        if self._frames is None or key > self._place + _WORTH or self._is_alone(number):
            self._begin(number, key)
        found = self._take(number)
        if found is None or (self._broken is not None and self._broken[0] == key):
            broken = number if self._broken is None else self._broken[1]
            what = "it" if broken == number else f"frame {broken}, on which it builds,"
            raise RowError(f"{what} cannot be decoded: {self._error or 'the decoder gives no picture'}", CODE)
        return upright(_pixels(found), found)

    def _open(self) -> None:
        """Go to the beginning of the file, with a decoder that refuses what is damaged, or larger than memory."""
        self._stack.close()
        self._container, self._stream = self._stack.enter_context(opened(self._path))
        self._context = self._stream.codec_context
        self._context.thread_type, self._context.thread_count = "AUTO", self._threads
        self._context.options = {"err_detect": "explode", "max_pixels": str(room(self._limit) // _DECODED)}
        self._packets = self._stored()
        self._place = 0  # of the next packet
        self._next = 0  # the frame that should come next
        self._frames: Iterator[Any] | None = None
        self._ahead: Any = None
        self._broken: tuple[int, int] | None = None  # the key frame of a damaged frame, and the number of that frame
        self._error: str | None = None

    def _is_alone(self, number: int) -> bool:
        """Return whether a frame that only its order tells apart is decoded without others."""
        return not self._index.timed and self._index.keys[number] == self._index.places[number] > 0

    def _begin(self, number: int, key: int) -> None:
        """Let decoding begin at the packet `key`, for a frame."""
        self._go_to(key)
        self._context.flush_buffers()
        self._frames = self._decoded(alone=not self._index.timed and self._index.keys[-1] > 0)
        self._ahead = self._broken = self._error = None
        self._next = number
        while self._next and self._index.keys[self._next - 1] == key:
            self._next -= 1

    def _go_to(self, place: int) -> None:
        """Go to a packet: by the file's own table if it is far away, and then by reading those before it."""
        if self._index.timed and place - self._place > _FAR:
            self._jump(place)
        if place < self._place:
            self._open()
        while self._place < place and next(self._packets, None) is not None:
            self._place += 1

    def _jump(self, place: int) -> None:
        """Go to a packet, or to one before it; to the file's beginning if it cannot be found so."""
        try:
            self._container.seek(self._index.packets[place], stream=self._stream)
            first = next(self._stored(), None)
            if first is not None and first.pts in (known := self._index.packets[: place + 1]):
                self._place = known.index(first.pts)
                self._container.seek(self._index.packets[place], stream=self._stream)
                self._packets = self._stored()
                return
        except library().FFmpegError:
            pass
        self._open()

    def _stored(self) -> Iterator[Any]:
        """Yield the packets that an index counts, from here on."""
        return (packet for packet in self._container.demux(self._stream) if packet.size)

    def _decoded(self, *, alone: bool) -> Iterator[Any]:
        """Yield frames from the next packet on, or only those of this one."""
        for packet in self._packets:
            self._place += 1
            yield from self._fed(packet)
            if alone:
                break
        yield from self._fed(None)

    def _fed(self, packet: Any) -> list[Any]:
        """Return the frames that a decoder gives for a packet, or at the end."""
        if packet is not None and packet.is_corrupt:
            self._error = "its data is cut off or damaged"
            return []
        try:
            return decoded(self._context, packet)
        except library().FFmpegError as error:
            self._error = words_of(error)
            return []

    def _take(self, number: int) -> Any:
        """Return a frame, None if there is none; note which of those before it are missing."""
        found = None
        while self._next <= number and self._frames is not None:
            found = self._ahead or next(self._frames, None)
            self._ahead = None
            at = self._number(found)
            if at < self._next:
                continue
            if found is not None and found.is_corrupt:
                self._miss(at)
            for missing in range(self._next, min(at, number + 1)):
                self._miss(missing)
            if at > number:
                self._ahead, found = found, None
            self._next = min(at, number) + 1
        return found

    def _number(self, found: Any) -> int:
        """Return which frame was decoded; -1 if it is none of the index, and one behind all at the end."""
        index = self._index
        if found is None:
            return len(index.times)
        if not index.timed:
            if self._error is not None:
                self._miss(self._next)
            return self._next
        at = bisect_left(index.times, found.pts if found.pts is not None else index.times[0] - 1)
        return at if at < len(index.times) and index.times[at] == found.pts else -1

    def _miss(self, number: int) -> None:
        """Note that a frame is damaged, unless one is noted on which it builds."""
        key = self._index.keys[number]
        if self._broken is None or self._broken[0] != key:
            self._broken = key, number


def decoded(context: Any, packet: Any) -> list[Any]:
    """Return the frames that a decoder gives for a packet; None is the end."""
    return list(context.decode(packet))


def _pixels(frame: Any) -> Array:
    """Return the pixels of a frame as it is stored: grey with one channel, all others as bytes of red, green, blue."""
    form = frame.format
    if not form.name.startswith("gray"):
        found: Array = frame.to_ndarray(format="rgb24")
        return found
    bits = form.components[0].bits
    if bits not in {8, 16}:
        raise RowError(f"it has grey values of {bits} bits, and 8 or 16 can be read", "lost-bits")
    grey: Array = frame.to_ndarray(format="gray" if bits == 8 else "gray16le")  # noqa: PLR2004
    return grey[..., None]


def upright(pixels: Array, frame: Any) -> Array:
    """Return pixels [height, width, channels], turned as the display matrix of their frame says.

    It has the directions in which a picture's columns and rows go on the screen.
    """
    matrix = next((bytes(data) for data in frame.side_data if data.type.name == "DISPLAYMATRIX"), None)
    if matrix is None:
        return pixels
    of_columns, down, _, of_rows, of_rows_down = struct.unpack("=5i", matrix[:20])
    right, below = of_columns, of_rows_down
    if abs(down) > abs(of_columns):
        pixels, right, below = pixels.transpose(1, 0, 2), of_rows, down
    return np.ascontiguousarray(pixels[:: -1 if below < 0 else 1, :: -1 if right < 0 else 1])
