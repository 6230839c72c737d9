"""WAV files of whole numbers (PCM, 8 to 32 bits), one a row: column `samples`, float32 from -1 to 1, and `rate`.

Samples are [frames] of one channel, or [channels, frames]. Files of different lengths make rows of different shapes.
A row whose file has another sample rate than the job's input declares fails. The header may be an extensible one, and
may leave the length open, as ffmpeg does in pipes. Files of floating samples are read by the format audio.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, BinaryIO

import numpy as np

from ortdeploy.facts.data import InputFacts
from ortdeploy.files.memory_budget import check_room
from ortdeploy.files.opening import open_regular
from ortdeploy.sources.file_per_row import FilePerRow
from ortdeploy.sources.protocol import Wanted
from ortdeploy.sources.raw_row import RawRow
from ortdeploy.sources.recordings import RATE, Header, hold_rate, in_words, probe_recordings, row_of
from ortdeploy.sources.riff import Wav, read_wav
from ortdeploy.sources.rows import RowError
from ortdeploy.tensors.columns import Array

SUFFIXES = (".wav",)
FIRST_ROWS = 4
PACKAGE = None
SETTINGS = (RATE,)

_WIDTHS = (1, 2, 3, 4)
"""Bytes of a sample."""
_DECODED = 24
"""Memory for a sample while it is decoded, in bytes: its own, numbers of 64 bits, the results, and a reordered copy."""
_WHAT, _CODE = "a WAV file of whole numbers", "not-a-wav"


def probe(files: Sequence[str], facts: InputFacts) -> InputFacts:
    """Look at the headers."""
    return probe_recordings(files, facts, _header)


@contextmanager
def _opened(path: str) -> Iterator[tuple[BinaryIO, Wav]]:
    """Open a file and read its header. Raises RowError."""
    with in_words(path, "wav", _WHAT, _CODE), open_regular(path) as file:
        try:
            wav = read_wav(file)
        except ValueError as error:
            if "unknown format" not in str(error):
                raise
            advice = "Of other kinds of WAV, such as floating samples, say format: audio (extra audio)"
            raise RowError(f"not {_WHAT}: {error}. {advice}", _CODE) from error
        if wav.width not in _WIDTHS or wav.rate < 1:
            raise RowError(f"it says {wav.width} bytes a sample at {wav.rate} Hz", _CODE)
        yield file, wav


def _header(path: str) -> Header:
    """Return what a file's header says. Raises RowError."""
    with _opened(path) as (file, wav):
        return _as_header(wav, file)


def _as_header(wav: Wav, file: BinaryIO) -> Header:
    size = os.fstat(file.fileno()).st_size - wav.begin if wav.size is None else wav.size
    return Header(wav.channels, wav.rate, size // (wav.channels * wav.width))


def _decode(raw: RawRow, wanted: Wanted) -> dict[str, Any]:
    """Read a file. Raises RowError."""
    with _opened(raw.value) as (file, wav):
        header = _as_header(wav, file)
        hold_rate(header, wanted)
        frame = header.channels * wav.width
        there = min(header.frames * frame, os.fstat(file.fileno()).st_size)
        check_room(_DECODED * there // wav.width, f"a recording of {there:,} bytes", wanted.memory_limit)
        file.seek(wav.begin)
        data = file.read(there)
        if len(data) != header.frames * frame:
            raise RowError(f"the file ends after {len(data) // frame} of {header.frames} frames", _CODE)
        if not data and wav.is_unfinished:
            raise RowError("the recording is cut off: its header says that it has no samples, and more follows", _CODE)
        return row_of(_samples(data, wav.width), header)


def _samples(data: bytes, width: int) -> Array:
    """Return float32 [frames] or [channels, frames] from -1 to 1: 8-bit samples are unsigned, others are signed."""
    if width == 1:
        return (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / 128
    if width == 3:  # noqa: PLR2004  24 bits: numpy has no such type
        wide = np.zeros((len(data) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        return _scaled(wide.view("<i4")[:, 0])
    return _scaled(np.frombuffer(data, f"<i{width}"))


def _scaled(samples: Array) -> Array:
    """Return signed samples [frames] as float32 from -1 to 1; a power of two rounds nothing, so none is a double."""
    return np.multiply(samples, np.float32(2.0 ** (1 - 8 * samples.itemsize)), dtype=np.float32)


@contextmanager
def open_source(files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[FilePerRow]:
    """Open WAV files, one row each."""
    yield FilePerRow(files, folder, wanted, partial(_decode, wanted=wanted), "wav")
