"""Writes a text about each picture with a model of ONNX Runtime GenAI: `generate` with a model that sees.

Pictures were decoded before, as all pictures are, and go to the library as a PNG that is made here. Its own decoders
never see a stranger's file: over some that are broken, they end the process.
"""

import struct
import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.pipelines.component import Component
from ortdeploy.pipelines.generate import GenerateSession
from ortdeploy.plan.pipeline import PlannedPipeline
from ortdeploy.runtime.generation import Writing, Written
from ortdeploy.tensors.columns import Array

_BITS, _RGB = 8, 2
_RANK, _COLORS = 3, 3
_LARGEST = 16_384
"""Pixels of the longest side that the library takes."""


class DescribeSession(GenerateSession):
    """Writes one text of each row and its picture; it is used by one thread at a time."""

    def __init__(self, pipeline: PlannedPipeline, components: Mapping[str, Component]) -> None:
        """Open all models together. Raises OrtdeployError."""
        super().__init__(pipeline, components)
        said = pipeline.preset.ports["pictures"] if pipeline.preset is not None else {}
        self._tag, self._tag_begin = said["tag"], said["begin"]

    def _written(
        self,
        texts: Sequence[str],
        hows: Sequence[Writing],
        feeds: Mapping[str, Array],
        adapters: Sequence[str],  # noqa: ARG002  such a model has none
    ) -> list[Written]:
        """Return what is written of the pictures of rows. Raises OrtdeployError."""
        return [
            self._session.describe(self._tagged(text), png_of(feeds["images"][row]), hows[row])
            for row, text in enumerate(texts)
        ]

    def _tagged(self, text: str) -> str:
        """Return what the model reads for a row's text, with the one place of its picture. Raises OrtdeployError."""
        if self._chat == "prompt" and self._tag_begin not in text:
            text = f"{self._tag}{text}"
        prompt = self._prompt(text)
        places = prompt.count(self._tag_begin)
        needed = self._tag.rstrip()
        if places != 1 or needed not in prompt:
            raise OrtdeployError(f"the prompt has {places} places for a picture, and needs one: {needed}")
        return prompt


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
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes(), 0)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
