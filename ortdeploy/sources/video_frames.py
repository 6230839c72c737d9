"""Which frames a video file has, without decoding one.

An index has one entry for each frame that a decoder gives, in the order in which frames are shown. It is made of the
packets of the stream, each of which holds a frame. Times are whole numbers in the file's own unit, so none is rounded.
Files are read through Python, and none of a format that names other files.
"""

from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import Any, BinaryIO

from msgspec import Struct

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.opening import open_regular
from ortdeploy.sources.format_check import what_it_is

_FORMATS = (
    "mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm", "avi", "mpegts", "mpeg", "mpegvideo", "m4v", "h264", "hevc", "ivf",
    "flv", "asf", "ogg", "mxf",
)  # fmt: skip
"""Formats that are opened, by FFmpeg's names; playlists and lists of files would open others."""

_REORDERED = 64
"""Places by which frames are shown later than they are stored at most; farther apart, a clock was set anew."""

_WITHOUT_TIMES = frozenset({"avi"})
"""Formats that do not tell when a frame is shown: FFmpeg guesses, and guesses wrongly where frames are reordered."""


_SHOWN = 0x10
"""The bit of VP8's first byte that says that a frame is shown, and not only referred to."""


class FrameIndex(Struct, frozen=True, kw_only=True):
    """The frames of a file as they are shown.

    `times` are in units of `base` seconds. `places` are those of their packets, `keys` those from which decoding must
    begin, and `packets` the times of all packets, by place. `key_frames` are the numbers of such. Where frames are not
    `timed`, their order alone tells them apart. `ends` says why the file ends too early.
    """

    times: Sequence[int]
    places: Sequence[int]
    keys: Sequence[int]
    packets: Sequence[int]
    key_frames: Sequence[int]
    base: Fraction
    timed: bool
    ends: str | None = None

    def seconds(self, frame: int) -> float:
        """Return when a frame is shown, as the nearest float."""
        return float(self.times[frame] * self.base)


@cache
def library() -> Any:
    """Return PyAV."""
    import av  # noqa: PLC0415  an extra, for videos only

    return av


def index_of(path: str) -> FrameIndex:
    """Return the frames of a file; one that is cut off has those that are whole. Raises OrtdeployError, OSError."""
    with opened(path) as (container, stream):
        packets = _Packets()
        ends = None
        try:
            for packet in container.demux(stream):
                packets.add(packet, stream.codec_context.name)
        except library().FFmpegError as error:
            ends = f"it cannot be read further: {words_of(error)}"
        return packets.index(container.format.name, stream, ends or _missing_end(path, stream, packets))


class _Packets:
    """The packets of a stream, in the order in which they are stored."""

    def __init__(self) -> None:
        """Begin without a packet."""
        self.shown = array("q")
        self.is_key, self.is_row = bytearray(), bytearray()
        self.are_timed = True
        self.is_cut = False
        self.empty = 0

    def add(self, packet: Any, codec: str) -> None:
        """Take the next packet; one without a frame is no row."""
        if not packet.size:
            self.empty += packet.dts is not None
            return
        self.is_cut = packet.is_corrupt
        self.are_timed = self.are_timed and packet.pts is not None
        place = len(self.shown)
        self.shown.append(place if packet.pts is None else packet.pts)
        self.is_key.append(packet.is_keyframe)
        hidden = codec == "vp8" and not memoryview(packet)[0] & _SHOWN
        self.is_row.append(not (packet.is_discard or hidden))

    def index(self, form: str, stream: Any, ends: str | None) -> FrameIndex:
        """Return the frames, in the order in which they are shown."""
        keys = self._keys()
        rows = [place for place, key in enumerate(keys) if key is not None and self.is_row[place]]
        order = sorted(rows, key=self.shown.__getitem__)
        times = [self.shown[place] for place in order]
        timed = self.are_timed and form not in _WITHOUT_TIMES and _are_apart(times) and _is_near(rows, order)
        if not timed:
            return self._by_order(rows, stream, ends)
        found = [keys[place] or 0 for place in order]
        return self._of(order, times, found, stream.time_base, timed=True, ends=ends)

    def _by_order(self, rows: list[int], stream: Any, ends: str | None) -> FrameIndex:
        """Return the frames of a file that does not say when they are shown: each as long as the other."""
        alone = all(self.is_key)
        times, base = sorted(self.shown[place] for place in rows), stream.time_base
        if not self.are_timed or not _are_apart(times):
            times, base = list(range(len(rows))), 1 / Fraction(stream.average_rate or stream.guessed_rate or 25)
        keys = rows if alone else [0] * len(rows)
        return self._of(rows, times, keys, base, timed=False, ends=ends)

    def _of(
        self, places: list[int], times: list[int], keys: list[int], base: Fraction, *, timed: bool, ends: str | None
    ) -> FrameIndex:
        key_frames = [frame for frame, place in enumerate(places) if self.is_key[place]]
        return FrameIndex(
            times=times,
            places=places,
            keys=keys,
            packets=self.shown,
            key_frames=key_frames,
            base=base,
            timed=timed,
            ends=ends,
        )

    def _keys(self) -> list[int | None]:
        """Return by place from which one a decoder must begin; None for what is before the first key frame.

        A frame that is shown before its key frame, but stored behind it, refers to those before the key frame too.
        """
        if not any(self.is_key):
            return [0] * len(self.shown)
        before: int | None = None
        last: int | None = None
        found = list[int | None]()
        for place, is_key in enumerate(self.is_key):
            if is_key:
                before, last = last, place
            is_behind = last is not None and self.shown[place] >= self.shown[last]
            found.append(last if is_behind or not self.are_timed else before)
        return found


def _are_apart(times: Sequence[int]) -> bool:
    """Return whether sorted times are all different."""
    return all(one != other for one, other in pairwise(times))


def _is_near(rows: Sequence[int], order: Sequence[int]) -> bool:
    return all(abs(one - other) <= _REORDERED for one, other in zip(rows, order, strict=True))


def _missing_end(path: str, stream: Any, packets: _Packets) -> str | None:
    """Return that a file has less than it says itself; None if it does not say."""
    found = len(packets.shown) + packets.empty
    if packets.is_cut:
        return None  # the last frame fails itself
    if stream.frames > found:
        return f"it has {found:,} of {stream.frames:,} frames"
    with open_regular(path) as file:
        lacks = _lacking_bytes(file)
    return None if lacks <= 0 else f"its last {lacks:,} bytes are missing"


def _lacking_bytes(file: BinaryIO) -> int:
    """Return how many bytes a Matroska or WebM file is shorter than it says."""
    head = file.read(512)
    if not head.startswith(b"\x1a\x45\xdf\xa3"):
        return 0
    size, place = _number(head, 4)
    place += size
    if head[place : place + 4] != b"\x18\x53\x80\x67":
        return 0
    size, place = _number(head, place + 4)
    return 0 if size < 0 else place + size - file.seek(0, 2)


def _number(head: bytes, place: int) -> tuple[int, int]:
    """Return a size as EBML writes it, -1 if it is open, and the place behind it."""
    first = head[place] if place < len(head) else 0
    length = 9 - first.bit_length()
    value = int.from_bytes(bytes([first & (0xFF >> length)]) + head[place + 1 : place + length])
    return (-1 if value == (1 << 7 * length) - 1 else value), place + length


@contextmanager
def opened(path: str) -> Iterator[tuple[Any, Any]]:
    """Open a file with its video stream. Raises OrtdeployError for what is no video, and OSError."""
    av = library()
    allowed = {"format_whitelist": ",".join(_FORMATS), "protocol_whitelist": ""}
    with open_regular(path) as file, ExitStack() as stack:
        try:
            container = stack.enter_context(av.open(file, container_options=allowed, metadata_errors="replace"))
        except av.FFmpegError as error:
            raise _unfit(path, f"{words_of(error)}{what_it_is('video', path)}") from error
        streams = [one for one in container.streams.video if not one.disposition & _picture()]
        if not streams:
            raise _unfit(path, "it holds no video")
        if streams[0].codec_context is None:
            raise _unfit(path, "FFmpeg has no decoder for its codec")
        for one in container.streams:
            if one is not streams[0]:
                with suppress(AttributeError):
                    one.discard = "all"
        yield container, streams[0]


def _picture() -> Any:
    """Return what marks a stream that is the cover of a recording."""
    from av.stream import Disposition  # noqa: PLC0415  as above

    return Disposition.attached_pic


def check_video(path: str) -> None:
    """Open a file and look at its header. Raises OrtdeployError for what is no video, and OSError."""
    with opened(path):
        pass


def _unfit(path: str, why: str) -> OrtdeployError:
    return OrtdeployError(f"{path} cannot be read as video: {why}")


def words_of(error: Any) -> str:
    """Return what FFmpeg says of a file, without its number."""
    return str(error.strerror or error)
