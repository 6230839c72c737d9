"""Recordings that libsndfile reads, one a row: FLAC, Ogg (Vorbis, Opus), MP3, AIFF, WAV of any kind, by `soundfile`.

Columns are `samples`, float32, and `rate`, as of the format wav. Whole numbers become -1 to 1; floating samples stay.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from io import BufferedReader
from typing import Any

import numpy as np
from msgspec.structs import replace

from ortdeploy.facts.data import InputFacts
from ortdeploy.facts.problems import Package
from ortdeploy.files.memory_budget import check_room
from ortdeploy.files.opening import open_regular
from ortdeploy.process.native_output import put_aside
from ortdeploy.sources.file_per_row import FilePerRow
from ortdeploy.sources.protocol import Wanted
from ortdeploy.sources.raw_row import RawRow
from ortdeploy.sources.recordings import RATE, Header, hold_rate, in_words, probe_recordings, row_of
from ortdeploy.sources.riff import hold_frames, missing_end
from ortdeploy.sources.rows import RowError
from ortdeploy.tensors.columns import Array

SUFFIXES = (".aif", ".aiff", ".flac", ".mp3", ".oga", ".ogg", ".opus")
FIRST_ROWS = 4
PACKAGE = Package(module="soundfile", name="soundfile", extra="audio")
SETTINGS = (RATE,)

_DECODED = 12
"""What a sample takes while it is decoded, in bytes: float32 as it is read, by channel, and the row's own."""
_OPEN, _PIECE = 2**62, 65536
"""From here on, libsndfile's number of samples says that the header does not tell; and how many are then read at once.
"""
_WHAT, _CODE = "a recording that can be decoded", "not-audio"


def probe(files: Sequence[str], facts: InputFacts) -> InputFacts:
    """Look at the headers; what libmpg123 notes of damaged ones is no line of a log."""
    with put_aside():
        return probe_recordings(files, facts, _header)


def _header(path: str) -> Header:
    """Return what a file's header says. Raises RowError."""
    with in_words(path, "audio", _WHAT, _CODE), _opened(path) as file:
        return Header(file.channels, file.samplerate, file.frames)


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    """Open a file. Raises OSError, and ValueError for its content."""
    import soundfile  # noqa: PLC0415  an extra, for such recordings only

    with open_regular(path) as stream:
        content = _Content(stream)

        class Forward(soundfile.SoundFile):  # type: ignore[misc]  # soundfile is untyped
            """A file that is read from its begin to its end: soundfile cannot seek in one of open length."""

            def seekable(self) -> bool:
                return False

        try:
            with Forward(content) as file:
                yield file
        except soundfile.LibsndfileError as error:
            raise content.failure or ValueError(error.error_string) from error
        if content.failure is not None:
            raise content.failure


class _Content:
    """A file for libsndfile that keeps its exceptions: one that passes through libsndfile is printed and lost."""

    def __init__(self, stream: BufferedReader) -> None:
        self._stream = stream
        self.failure: OSError | None = None

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to an offset; stay if a damaged header names one before the file's beginning."""
        with suppress(OSError, ValueError):
            self._stream.seek(offset, whence)
        return self.tell()

    def tell(self) -> int:
        """Return the offset."""
        return self._stream.tell()

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; keep the exception if the file cannot be read."""
        try:
            return self._stream.readinto(buffer)
        except OSError as error:
            self.failure = error
            return 0


def _decode(raw: RawRow, wanted: Wanted) -> dict[str, Any]:
    """Read a file. Raises RowError."""
    with in_words(raw.value, "audio", _WHAT, _CODE), _opened(raw.value) as file:
        header = Header(file.channels, file.samplerate, file.frames)
        hold_rate(header, wanted)
        if header.frames >= _OPEN:
            samples = _all_samples(file, wanted.memory_limit)
            header = replace(header, frames=len(samples))
        else:
            _check_room(header.frames, header.channels, wanted.memory_limit)
            samples = file.read(header.frames, dtype="float32")
    if len(samples) != header.frames:
        raise RowError(f"the file ends after {len(samples)} of {header.frames} frames", _CODE)
    with in_words(raw.value, "audio", _WHAT, _CODE), open_regular(raw.value) as stream:
        hold_frames(stream)
        lacks = missing_end(stream) or (None if len(samples) else "it holds no samples")
    if lacks is not None:
        raise RowError(f"the recording is cut off: {lacks}", _CODE)
    return row_of(samples.reshape(-1), header)


def _check_room(frames: int, channels: int, limit: int | None) -> None:
    what = f"a recording of {frames:,} samples in {channels} channels"
    check_room(_DECODED * frames * channels, what, limit)


def _all_samples(file: Any, limit: int | None) -> Array:
    """Return the samples [frames, …] of a file whose header leaves the length open, as ffmpeg does in pipes."""
    pieces, frames = list[Array](), 0
    while not pieces or len(pieces[-1]) == _PIECE:
        _check_room(frames + _PIECE, file.channels, limit)
        pieces.append(file.read(_PIECE, dtype="float32"))
        frames += len(pieces[-1])
    return np.concatenate(pieces)


@contextmanager
def open_source(files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[FilePerRow]:
    """Open recordings, one row each."""
    yield FilePerRow(files, folder, wanted, partial(_decode, wanted=wanted), "audio")
