"""Made-up sample files for starters, so that what is written runs before the user has data."""

import io
import wave
from collections.abc import Mapping

import numpy as np

from ortdeploy.files.numpy_archives import write_npz
from ortdeploy.sinks.png import as_png
from ortdeploy.tensors.columns import Array

RATE = 16_000


def archive(arrays: Mapping[str, Array]) -> bytes:
    """Return arrays as an .npz file; text as NumPy's own strings."""
    file = io.BytesIO()
    write_npz(file, {name: array.astype(str) if array.dtype == object else array for name, array in arrays.items()})
    return file.getvalue()


def picture(height: int, width: int, channels: int) -> bytes:
    """Return a PNG file with a gradient and a bright square, uint8 [height, width, channels]."""
    rows, columns = np.mgrid[0:height, 0:width]
    planes = [rows * 255 // max(height - 1, 1), columns * 255 // max(width - 1, 1), np.full((height, width), 90)]
    image = np.stack(planes[:channels], axis=-1).astype(np.uint8)
    image[height // 4 : height // 2, width // 4 : width // 2] = 240
    return as_png("sample", image)


def recording(seconds: float = 2.0, rate: int = RATE) -> bytes:
    """Return a WAV file: half a hum, half silence, 16 bits."""
    time = np.arange(int(seconds * rate)) / rate
    hum = sum(np.sin(2 * np.pi * 120 * tone * time) / tone for tone in range(1, 8))
    samples = (np.where(time < seconds / 2, 0.2, 0.001) * hum * 32767).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(samples.tobytes())
    return file.getvalue()
