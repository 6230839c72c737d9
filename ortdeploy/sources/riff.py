"""How much of a recording its file says there is: by chunks, a header, or the last page of an Ogg file."""

import os
import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from msgspec import Struct

OPEN_SIZES = frozenset({0xFFFFFFFF, 0x7FFFF000, 0x7FFFFFFF, 2**63 - 1, 2**64 - 1})
"""Sizes that ffmpeg and sox write into pipes, where nobody can go back and write how much came."""

_PCM, _FLOATING, _EXTENSIBLE = 1, 3, 0xFFFE
_GUID = bytes.fromhex("000000001000800000aa00389b71")
"""The end of the identifier of a kind of samples in an extensible header; its beginning is the kind's number."""
_FORMAT, _WITH_GUID = 16, 40
"""Bytes of the two kinds of headers."""
_MOST_CHUNKS = 4096
_IN_DS64, _DS64_DATA = 0xFFFFFFFF, 28
"""The size that samples of RF64 files have, which may be larger than 4 GiB; and where the file has the right one."""
_OGG_PAGE, _LARGEST_PAGE = 27, 65307


class _Container(NamedTuple):
    """How a kind of files has its chunks: where the first one begins, what is in front of a content, and the rest.

    Each chunk begins at a multiple of `step` behind the first. `holds_head`: its size is that of its head as well.
    """

    begin: int
    head: str
    step: int = 1
    holds_head: bool = False


_RIFF = _Container(12, "<4sI", step=2)
_CONTAINERS = {
    b"RIFF": _RIFF,
    b"RF64": _RIFF,
    b"FORM": _Container(12, ">4sI", step=2),
    b"caff": _Container(8, ">4sQ"),
    b"riff": _Container(40, "<16sQ", step=8, holds_head=True),  # Wave64
}
_SAMPLES = frozenset({b"data", b"SSND", b"BODY"})
"""How the names of chunks with samples begin."""
_AU = {b".snd": ">II", b"dns.": "<II"}
"""Where the samples of such files begin, and their size, stand behind these letters."""


class Chunk(NamedTuple):
    """A chunk of a file: its name, where its content begins, and how many bytes it says that this has."""

    name: bytes
    begin: int
    size: int


class Wav(Struct, frozen=True):
    """The header of a WAV file of whole numbers. `size` are the bytes of its samples; None if nobody wrote how many.

    It is unfinished if the file goes on behind the end that it names, as when a recorder was stopped by force.
    """

    channels: int
    rate: int
    width: int
    begin: int
    size: int | None
    is_unfinished: bool


def read_wav(file: BinaryIO) -> Wav:
    """Read the header of a WAV file. Raises ValueError for anything else, and for samples that are no whole numbers."""
    head = file.read(12)
    if head[:4] != b"RIFF":
        raise ValueError("file does not start with RIFF id")
    if head[8:] != b"WAVE":
        raise ValueError("not a WAVE file")
    found: tuple[int, int, int] | None = None
    for chunk in _chunks(file, _RIFF):
        if chunk.name == b"fmt ":
            found = _samples(file.read(min(chunk.size, _WITH_GUID)))
        elif chunk.name == b"data":
            if found is None:
                raise ValueError("data chunk before fmt chunk")
            is_open = chunk.size in OPEN_SIZES or (not chunk.size and head[4:8] in {bytes(4), b"\xff" * 4})
            ends = max(chunk.begin, 8 + int.from_bytes(head[4:8], "little"))
            is_unfinished = file.seek(0, os.SEEK_END) > ends
            return Wav(*found, chunk.begin, None if is_open else chunk.size, is_unfinished)
    raise ValueError("fmt chunk and/or data chunk missing")


def _samples(content: bytes) -> tuple[int, int, int]:
    """Return the channels, the sample rate in Hz and the bytes of a sample."""
    if len(content) < _FORMAT:
        raise ValueError("its fmt chunk is cut off")
    kind, channels, rate, _, frame, bits = struct.unpack("<HHIIHH", content[:_FORMAT])
    if kind == _EXTENSIBLE and len(content) == _WITH_GUID and content[26:] == _GUID:
        (kind,) = struct.unpack("<H", content[24:26])
    if kind != _PCM:
        raise ValueError(f"unknown format: {kind}")
    if not channels or not bits:
        raise ValueError(f"it says {bits} bits a sample in {channels} channels")
    _hold_frame(frame, channels, bits)
    return channels, rate, -(-bits // 8)


def _hold_frame(frame: int, channels: int, bits: int) -> None:
    """Raise ValueError if a frame has another size than its samples; some writers leave it out."""
    usual = channels * -(-bits // 8)
    if frame not in {0, usual}:  # such as 24 bits in 4 bytes each, which would be read as noise
        raise ValueError(f"its frames have {frame} bytes, and {channels} channels of {bits} bits have {usual}")


def hold_frames(file: BinaryIO) -> None:
    """Hold a file's frames against their samples, if it is a WAV file of these alone. Raises ValueError."""
    if _CONTAINERS.get(_at(file, 0, 4)) is not _RIFF:
        return
    chunk = next((one for one in _chunks(file, _RIFF) if one.name == b"fmt "), None)
    content = b"" if chunk is None else _at(file, chunk.begin, _FORMAT)
    if len(content) == _FORMAT and (found := struct.unpack("<HHIIHH", content))[0] in {_PCM, _FLOATING, _EXTENSIBLE}:
        _hold_frame(found[4], found[1], found[5])


def _chunks(file: BinaryIO, container: _Container) -> Iterator[Chunk]:
    """Yield the chunks of a file; whoever takes one may read in it."""
    begin, length = container.begin, struct.calcsize(container.head)
    for _ in range(_MOST_CHUNKS):  # a file of zeros would have millions
        head = _at(file, begin, length)
        if len(head) < length:
            return
        name, size = struct.unpack(container.head, head)
        if container.holds_head and size not in OPEN_SIZES:
            size = max(size - length, 0)
        yield Chunk(name, begin + length, size)
        begin += length + size + -size % container.step


def _at(file: BinaryIO, place: int, size: int) -> bytes:
    file.seek(place)
    return file.read(size)


def missing_end(file: BinaryIO) -> str | None:
    """Return what a recording lacks at its end, in words, if its container says that there was more.

    libsndfile takes what is left for the whole recording.
    """
    size = file.seek(0, os.SEEK_END)
    head = _at(file, 0, 12)
    if head[:4] == b"OggS":
        return "its last page is cut off" if _is_page_cut(file, size) else None
    begin, told = _told_samples(file, head)
    if told in OPEN_SIZES or begin + told <= size:
        return None
    return f"it holds {max(size - begin, 0):,} of {told:,} bytes of samples"


def _told_samples(file: BinaryIO, head: bytes) -> tuple[int, int]:
    """Return where a file that begins so has its samples, and how many bytes it says that they are; 0 and 0 if not."""
    if head[:4] in _AU and len(head) == 12:  # noqa: PLR2004  letters and two numbers
        begin, size = struct.unpack(_AU[head[:4]], head[4:])
        return begin, size
    if head[:4] not in _CONTAINERS:
        return 0, 0
    chunk = next((one for one in _chunks(file, _CONTAINERS[head[:4]]) if one.name[:4] in _SAMPLES), None)
    if chunk is None:
        return 0, 0
    if head[:4] == b"RF64" and chunk.size == _IN_DS64:
        return chunk.begin, int.from_bytes(_at(file, _DS64_DATA, 8), "little")
    return chunk.begin, chunk.size


def _is_page_cut(file: BinaryIO, size: int) -> bool:
    """Return whether the last page of an Ogg file lacks its end."""
    begin = max(size - _LARGEST_PAGE, 0)
    tail = _at(file, begin, _LARGEST_PAGE)
    place = tail.rfind(b"OggS")
    while place >= 0:
        head = tail[place : place + _OGG_PAGE]
        if len(head) < _OGG_PAGE:
            return True
        if head[4] == 0:  # the version; else the letters are in the midst of samples
            lengths = tail[place + _OGG_PAGE : place + _OGG_PAGE + head[26]]
            return len(lengths) < head[26] or place + _OGG_PAGE + head[26] + sum(lengths) > len(tail)
        place = tail.rfind(b"OggS", 0, place)
    return False
