"""WAV files of whole numbers (PCM, 8 to 32 bits), one a row: column `samples`, float32 from -1 to 1, and `rate`.

Samples are [frames] of one channel, or [channels, frames]. Files of different lengths make rows of different shapes.
"""

import wave
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from ortdeploy.facts.data import InputFacts
from ortdeploy.facts.problems import Problem
from ortdeploy.sources.protocol import Wanted
from ortdeploy.sources.rows import FilePerRow, RowError
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.types import ROWS, TensorType

SUFFIXES = (".wav",)
FIRST_ROWS = 4
PACKAGE = None


def probe(files: Sequence[str], facts: InputFacts) -> InputFacts:
    """Take the number of channels from the first file; lengths differ from file to file."""
    try:
        row = _read(files[0])
    except RowError as error:
        return replace(facts, problem=Problem(kind="unreadable", detail=f"{files[0]}: {error}."))
    lengths = (None,) if row["samples"].ndim == 1 else (row["samples"].shape[0], None)
    columns = {"samples": TensorType("float32", (ROWS, *lengths)), "rate": TensorType("int64", (ROWS,))}
    return replace(facts, columns=columns, rows=len(files))


def _read(path: str) -> dict[str, Any]:
    """Read a file. Raises RowError."""
    try:
        with wave.open(path, "rb") as file:
            channels, width, rate, frames = file.getparams()[:4]
            samples = _samples(file.readframes(frames), width)
    except FileNotFoundError as error:
        raise RowError("the file is gone", "vanished-file") from error
    except OSError as error:
        raise RowError(f"the file cannot be read: {error.strerror}", "unreadable-file", transient=True) from error
    except (wave.Error, EOFError, ValueError) as error:
        raise RowError(f"not a WAV file of whole numbers: {error}", "not-a-wav") from error
    if len(samples) != frames * channels:
        raise RowError(f"the file ends after {len(samples) // channels} of {frames} frames", "not-a-wav")
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


@contextmanager
def open_source(files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[FilePerRow]:
    """Open WAV files, one row each."""
    yield FilePerRow(files, folder, wanted, lambda raw: _read(raw.value))
