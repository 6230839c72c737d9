"""Recordings that libsndfile reads, one a row: FLAC, Ogg (Vorbis, Opus), MP3, AIFF, WAV of any kind, by `soundfile`.

Columns are `samples`, float32, and `rate`, as of the format wav. Whole numbers become -1 to 1; floating samples stay.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from io import BufferedReader
from typing import Any

from ortdeploy.facts.data import InputFacts
from ortdeploy.facts.problems import Package
from ortdeploy.files.opening import open_regular
from ortdeploy.files.room import check_room
from ortdeploy.sources.file_per_row import FilePerRow
from ortdeploy.sources.protocol import Wanted
from ortdeploy.sources.recordings import Header, hold_rate, in_words, probe_recordings, row_of
from ortdeploy.sources.rows import RawRow, RowError

SUFFIXES = (".aif", ".aiff", ".flac", ".mp3", ".oga", ".ogg", ".opus")
FIRST_ROWS = 4
PACKAGE = Package(module="soundfile", name="soundfile", extra="audio")

_DECODED = 12
"""What a sample takes while it is decoded, in bytes: float32 as it is read, by channel, and the row's own."""
_WHAT, _CODE = "a recording that can be decoded", "not-audio"


def probe(files: Sequence[str], facts: InputFacts) -> InputFacts:
    """Look at the headers."""
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
        try:
            with soundfile.SoundFile(content) as file:
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
        what = f"a recording of {header.frames:,} samples in {header.channels} channels"
        check_room(_DECODED * header.frames * header.channels, what, wanted.memory_limit)
        samples = file.read(header.frames, dtype="float32")
    if len(samples) != header.frames:
        raise RowError(f"the file ends after {len(samples)} of {header.frames} frames", _CODE)
    return row_of(samples.reshape(-1), header)


@contextmanager
def open_source(files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[FilePerRow]:
    """Open recordings, one row each."""
    yield FilePerRow(files, folder, wanted, partial(_decode, wanted=wanted), "audio")
