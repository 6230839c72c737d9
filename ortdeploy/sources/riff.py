"""The chunks of WAV and AIFF files, and the last page of Ogg files: how much of a recording its file says there is."""

import os
import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from msgspec import Struct

OPEN_SIZES = frozenset({0xFFFFFFFF, 0x7FFFF000, 0x7FFFFFFF, 2**64 - 1})
"""Sizes that ffmpeg and sox write into pipes, where nobody can go back and write how much came."""

_PCM, _EXTENSIBLE = 1, 0xFFFE
_GUID = bytes.fromhex("000000001000800000aa00389b71")
"""The end of the identifier of a kind of samples in an extensible header; its beginning is the kind's number."""
_FORMAT, _WITH_GUID = 16, 40
"""Bytes of the two kinds of headers."""
_MOST_CHUNKS = 4096
_IN_DS64, _DS64_DATA = 0xFFFFFFFF, 28
"""The size that samples of RF64 files have, which may be larger than 4 GiB; and where the file has the right one."""
_OGG_PAGE, _LARGEST_PAGE = 27, 65307


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
    for chunk in _chunks(file, "<"):
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
    kind, channels, rate, _, _, bits = struct.unpack("<HHIIHH", content[:_FORMAT])
    if kind == _EXTENSIBLE and len(content) == _WITH_GUID and content[26:] == _GUID:
        (kind,) = struct.unpack("<H", content[24:26])
    if kind != _PCM:
        raise ValueError(f"unknown format: {kind}")
    if not channels or not bits:
        raise ValueError(f"it says {bits} bits a sample in {channels} channels")
    return channels, rate, -(-bits // 8)


def _chunks(file: BinaryIO, order: str) -> Iterator[Chunk]:
    """Yield the chunks behind the first twelve bytes; whoever takes one may read in it."""
    begin = 12
    for _ in range(_MOST_CHUNKS):  # a file of zeros would have millions
        head = _at(file, begin, 8)
        if len(head) < 8:  # noqa: PLR2004  a name and a size
            return
        name, size = struct.unpack(f"{order}4sI", head)
        yield Chunk(name, begin + 8, size)
        begin += 8 + size + size % 2


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
    kinds = {b"RIFF": ("<", b"data"), b"RF64": ("<", b"data"), b"FORM": (">", b"SSND")}
    if head[:4] not in kinds:
        return None
    order, wanted = kinds[head[:4]]
    chunk = next((one for one in _chunks(file, order) if one.name == wanted), None)
    if chunk is not None and head[:4] == b"RF64" and chunk.size == _IN_DS64:
        chunk = chunk._replace(size=int.from_bytes(_at(file, _DS64_DATA, 8), "little"))
    if chunk is None or chunk.size in OPEN_SIZES or chunk.begin + chunk.size <= size:
        return None
    return f"it holds {size - chunk.begin:,} of {chunk.size:,} bytes of samples"


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
