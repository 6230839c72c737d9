"""WAV files of whole numbers (PCM, 8 to 32 bits), one a row: column `samples`, float32 from -1 to 1, and `rate`.

Samples are [frames] of one channel, or [channels, frames]. Files of different lengths make rows of different shapes.
A row whose file has another sample rate than the job's input declares fails.
"""

import wave
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import InputFacts
from ortdeploy.facts.problems import Problem
from ortdeploy.files.decoding import is_a_bug, reason_of
from ortdeploy.files.room import check_room
from ortdeploy.sources.mistaken import what_it_is
from ortdeploy.sources.protocol import Wanted
from ortdeploy.sources.rows import FilePerRow, RawRow, RowError
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.types import ROWS, TensorType

SUFFIXES = (".wav",)
FIRST_ROWS = 4
PACKAGE = None

_WIDTHS = (1, 2, 3, 4)
"""Bytes of a sample."""
_DECODED = 24
"""What a sample takes while it is decoded, in bytes: its own, numbers of 64 bits, the results, one more order."""


def probe(files: Sequence[str], facts: InputFacts) -> InputFacts:
    """Take the number of channels from the first file, and the rates of all that have a header that can be read."""
    try:
        channels = _header(files[0]).nchannels
    except RowError as error:
        return replace(facts, problem=Problem(kind="unreadable", detail=f"{files[0]}: {error}."))
    lengths = (None,) if channels == 1 else (channels, None)
    columns = {"samples": TensorType("float32", (ROWS, *lengths)), "rate": TensorType("int64", (ROWS,))}
    return replace(facts, columns=columns, rows=len(files), rates=_rates(files))


def _rates(files: Sequence[str]) -> dict[int, tuple[int, ...]]:
    """Return the rows by their sample rate; a file that is damaged fails as a row when it is read."""
    found: dict[int, list[int]] = {}
    for row, path in enumerate(files):
        with suppress(RowError):
            found.setdefault(_header(path).framerate, []).append(row)
    return {rate: tuple(rows) for rate, rows in found.items()}


@contextmanager
def _in_words(path: str) -> Iterator[None]:
    """Turn what reading a file raises into a RowError."""
    try:
        yield
    except RowError:
        raise
    except FileNotFoundError as error:
        raise RowError("the file is gone", "vanished-file") from error
    except OSError as error:
        raise RowError(f"the file cannot be read: {error.strerror}", "unreadable-file", transient=True) from error
    except OrtdeployError as error:
        raise RowError(str(error), "too-large") from error
    except Exception as error:
        if is_a_bug(error):
            raise
        reason = f"{reason_of(error)}{what_it_is('wav', path)}"
        raise RowError(f"not a WAV file of whole numbers: {reason}", "not-a-wav") from error


def _header(path: str) -> Any:
    """Return what a file's header says. Raises RowError."""
    with _in_words(path), wave.open(path, "rb") as file:
        return _checked(file)


def _checked(file: wave.Wave_read) -> Any:
    params = file.getparams()
    if params.sampwidth not in _WIDTHS or params.framerate < 1:
        raise RowError(f"it says {params.sampwidth} bytes a sample at {params.framerate} Hz", "not-a-wav")
    return params


def _read(path: str, wanted: Wanted) -> dict[str, Any]:
    """Read a file. Raises RowError."""
    with _in_words(path), wave.open(path, "rb") as file:
        channels, width, rate, frames = _checked(file)[:4]
        if wanted.rate not in {None, rate}:
            raise RowError(f"it has {rate:,} samples a second, and the input declares {wanted.rate:,}", "other-rate")
        there = min(frames * channels * width, Path(path).stat().st_size)
        check_room(_DECODED * there // width, f"a recording of {there:,} bytes", wanted.memory_limit)
        data = file.readframes(there // (channels * width))
        if len(data) != frames * channels * width:
            raise RowError(f"the file ends after {len(data) // (channels * width)} of {frames} frames", "not-a-wav")
        samples = _samples(data, width)
    shaped = samples if channels == 1 else np.ascontiguousarray(samples.reshape(-1, channels).T)
    return {"samples": shaped, "rate": np.asarray(rate, np.int64)}


def _samples(data: bytes, width: int) -> Array:
    """Return samples as float32: 8 bits are unsigned, more are signed, as the format has them."""
    if width == 1:
        return (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / 128
    if width == 3:  # noqa: PLR2004  24 bits: numpy has no such type
        wide = np.zeros((len(data) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        return np.asarray(wide.view("<i4")[:, 0] / 2**31, np.float32)
    return np.asarray(np.frombuffer(data, f"<i{width}") / 2 ** (8 * width - 1), np.float32)


def _decode(raw: RawRow, wanted: Wanted) -> dict[str, Any]:
    return _read(raw.value, wanted)


@contextmanager
def open_source(files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[FilePerRow]:
    """Open WAV files, one row each."""
    yield FilePerRow(files, folder, wanted, partial(_decode, wanted=wanted))
