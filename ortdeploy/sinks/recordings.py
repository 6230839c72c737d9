"""Makes the file of a recording: WAV with the samples as they are, or FLAC."""

import io
import struct

import numpy as np

from ortdeploy.facts.problems import Package
from ortdeploy.tensors.columns import Array

FLAC = "flac"
SOUNDFILE = Package(module="soundfile", name="soundfile", extra="audio")
_CHANNELS_FIRST = 2
_KINDS = {"float32": (3, 32), "int16": (1, 16)}
"""The number of a WAV file's format, and the bits of a sample, by element type."""


def as_recording(name: str, samples: Array, rate: int, form: str) -> bytes:
    """Return the file of samples, [samples] or [channels, samples], float32 from -1 to 1 or int16.

    FLAC has 24 bits of a floating sample. Raises ValueError for anything else, and for FLAC beyond 1.
    """
    if samples.ndim not in {1, _CHANNELS_FIRST} or samples.dtype.name not in _KINDS:
        shown = f"{samples.dtype} {list(samples.shape)}"
        raise ValueError(f"{name} is {shown}, and a recording is float32 or int16 [samples] or [channels, samples]")
    frames = np.ascontiguousarray(np.atleast_2d(samples).T)
    return _flac(name, frames, rate) if form == FLAC else _wav(frames, rate)


def _wav(frames: Array, rate: int) -> bytes:
    """Return a WAV file of frames [frames, channels]."""
    kind, bits = _KINDS[frames.dtype.name]
    size, data = frames.shape[1] * bits // 8, frames.astype(frames.dtype.newbyteorder("<")).tobytes()
    form = struct.pack("<HHIIHH", kind, frames.shape[1], rate, rate * size, size, bits)
    if kind != 1:
        form += struct.pack("<H", 0)  # no extension
    fact = b"fact" + struct.pack("<II", 4, len(frames)) if kind != 1 else b""
    chunks = b"fmt " + struct.pack("<I", len(form)) + form + fact + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def _flac(name: str, frames: Array, rate: int) -> bytes:
    """Return a FLAC file of frames [frames, channels]. Raises ValueError."""
    import soundfile  # noqa: PLC0415  an extra, for such recordings only

    if frames.dtype == np.float32 and frames.size and not np.abs(frames).max() <= 1:
        raise ValueError(f"{name} has samples beyond 1, which FLAC cannot hold; write it as wav, or scale it")
    file = io.BytesIO()
    subtype = "PCM_16" if frames.dtype == np.int16 else "PCM_24"
    try:
        soundfile.write(file, frames, rate, subtype=subtype, format="FLAC")
    except soundfile.LibsndfileError as error:
        raise ValueError(f"{name} cannot be written as FLAC: {error}") from error
    return file.getvalue()
