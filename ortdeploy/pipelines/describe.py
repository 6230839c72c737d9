"""Writes a text about each picture or recording with a model of ONNX Runtime GenAI that takes them beside text.

Pictures and recordings were decoded before, as all are, and go to the library as PNG and WAV that are made here. Its
own decoders never see a stranger's file: over some that are broken, they end the process.
"""

import struct
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.pipelines.component import Component
from ortdeploy.pipelines.generate import GenerateSession
from ortdeploy.plan.pipeline import PlannedPipeline
from ortdeploy.presets.speech import RATE
from ortdeploy.runtime.generation import Writing, Written
from ortdeploy.sinks.recordings import as_recording
from ortdeploy.tensors.columns import Array

_BITS, _RGB = 8, 2
_RANK, _COLORS = 3, 3
_LARGEST = 16_384
"""Pixels of the longest side that the library takes."""


class DescribeSession(GenerateSession):
    """Writes one text of each row and what is sensed beside it; it is used by one thread at a time."""

    def __init__(self, pipeline: PlannedPipeline, components: Mapping[str, Component]) -> None:
        """Open all models together. Raises OrtdeployError."""
        super().__init__(pipeline, components)
        self._senses: Mapping[str, Any] = pipeline.preset.ports["senses"] if pipeline.preset is not None else {}

    def _written(
        self,
        texts: Sequence[str],
        hows: Sequence[Writing],
        feeds: Mapping[str, Array],
        adapters: Sequence[str],  # noqa: ARG002  such a model has none
    ) -> list[Written]:
        """Return what is written of the pictures and recordings of rows. Raises OrtdeployError."""
        given = {column for column in self._senses if column in feeds}
        found = []
        for row, text in enumerate(texts):
            picture = png_of(feeds["images"][row]) if "images" in given else None
            sound = self._wav_of(feeds["audio"][row]) if "audio" in given else None
            found.append(self._session.describe(self._tagged(text, given), picture, sound, hows[row]))
        return found

    def _tagged(self, text: str, given: Collection[str]) -> str:
        """Return what the model reads for a row's text, with one place for each column that is given.

        Raises OrtdeployError.
        """
        if self._chat == "prompt":
            lacking = [one["tag"] for name, one in self._senses.items() if name in given and one["begin"] not in text]
            text = "".join([*lacking, text])
        prompt = self._prompt(text)
        for name, one in self._senses.items():
            places, tag = prompt.count(one["begin"]), one["tag"].rstrip()
            if name not in given and places:
                raise OrtdeployError(f"the prompt has a place for {name}, and no column gives any")
            if name in given and (places != 1 or tag not in prompt):
                raise OrtdeployError(f"the prompt needs one place for {name}, {tag}, and has {places}")
        return prompt

    def _wav_of(self, samples: Array) -> bytes:
        """Return a recording, float32 [samples], as a WAV that the model hears whole. Raises OrtdeployError."""
        least, most = self._senses["audio"]["least"], self._senses["audio"]["most"]
        if not least <= len(samples) <= most:
            raise OrtdeployError(f"the recording has {len(samples):,} samples, and the model hears {least} to {most:,}")
        return as_recording("audio", samples, RATE, "wav")


def png_of(pixels: Array) -> bytes:
    """Return a picture, uint8 [height, width, 1 or 3], as a PNG that is not compressed. Raises OrtdeployError."""
    shape = pixels.shape
    if pixels.ndim != _RANK or shape[2] not in {1, _COLORS} or not 0 < min(shape) <= max(shape) <= _LARGEST:
        told = f"a picture is [height, width, 1 or 3], of sides up to {_LARGEST:,} pixels"
        raise OrtdeployError(f"images is {list(shape)}, and {told}")
    height, width, _ = shape
    lines = np.zeros((height, 1 + width * _COLORS), np.uint8)  # a line begins with its filter, which is none
    lines[:, 1:] = np.broadcast_to(pixels, (height, width, _COLORS)).reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, _BITS, _RGB, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(lines.data, 0)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
