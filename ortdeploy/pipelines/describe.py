"""Writes a text about pictures or a recording with a model of ONNX Runtime GenAI that takes them beside text.

Pictures and recordings are decoded as all are, and go to the library as PNG and WAV that are made here. Its
own decoders never see a stranger's file: over some that are broken, they end the process.
"""

import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.gate import Use, objection, outside
from ortdeploy.pipelines.component import Component
from ortdeploy.pipelines.generate import GenerateSession
from ortdeploy.plan.pipeline import PlannedPipeline
from ortdeploy.presets.speech import RATE
from ortdeploy.runtime.generation import Writing, Written
from ortdeploy.sinks.recordings import as_recording
from ortdeploy.sources.image import open_source
from ortdeploy.sources.protocol import Wanted
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
        preset = pipeline.preset
        self._senses: Mapping[str, Any] = preset.ports["senses"] if preset is not None else {}
        self._folder = preset.image_folder if preset is not None else None

    def _written(
        self,
        texts: Sequence[str],
        hows: Sequence[Writing],
        feeds: Mapping[str, Array],
        adapters: Sequence[str],  # noqa: ARG002  such a model has none
    ) -> list[Written]:
        """Return what is written of the pictures and recordings of rows. Raises OrtdeployError."""
        found = []
        for row, text in enumerate(texts):
            files = [str(path) for path in feeds["image_files"][row] if path] if "image_files" in feeds else []
            counts = {"images": ("images" in feeds) + len(files), "audio": int("audio" in feeds)}
            if counts["images"] >= self._how.context:  # before they are decoded
                held = f"the model's context holds {self._how.context} tokens"
                raise OrtdeployError(f"the row has {counts['images']} pictures, and {held}")
            prompt = self._tagged(text, counts)
            pictures = [png_of(feeds["images"][row])] if "images" in feeds else []
            pictures += [png_of(self._picture(path)) for path in files]
            sound = self._wav_of(feeds["audio"][row]) if counts["audio"] else None
            found.append(self._session.describe(prompt, pictures, sound, hows[row]))
        return found

    def _tagged(self, text: str, counts: Mapping[str, int]) -> str:
        """Return what the model reads for a row's text, with a place for each picture and recording of the row.

        Raises OrtdeployError.
        """
        tags = {
            name: [one["tag"].format(place + 1) for place in range(counts[name])] for name, one in self._senses.items()
        }
        if self._chat == "prompt":
            lacking = [name for name, one in self._senses.items() if one["begin"] not in text]
            text = "".join([*(self._senses[name].get("between", "").join(tags[name]) for name in lacking), text])
        prompt = self._prompt(text)
        for name, one in self._senses.items():
            _check_places(name, one, [tag.rstrip() for tag in tags[name]], prompt)
        return prompt

    def _picture(self, path: str) -> Array:
        """Return a picture of the image folder, uint8 [height, width, 1 or 3]. Raises OrtdeployError."""
        folder = str(self._folder)
        file = str(Path(folder, path))
        why = objection(path, Use.LOCAL)
        if why is None and outside(file, [folder]):
            why = f'"{path}" leads out of the folder that image_folder names. Name files in it.'
        if why is not None:
            raise OrtdeployError(f"image_files: {why}")
        if not os.path.lexists(file):
            raise OrtdeployError(f"image_files: there is no {path} in {folder}")
        with open_source([file], folder, Wanted(dtypes={"pixels": None})) as source:
            (block,) = source.blocks(0, repeat(1))
        if block.failed:
            raise OrtdeployError(f"{path}: {block.failed[0].message}")
        pixels: Array = block.columns["pixels"][0]
        return pixels

    def _wav_of(self, samples: Array) -> bytes:
        """Return a recording, float32 [samples], as a WAV that the model hears whole. Raises OrtdeployError."""
        least, most = self._senses["audio"]["least"], self._senses["audio"]["most"]
        if not least <= len(samples) <= most:
            raise OrtdeployError(f"the recording has {len(samples):,} samples, and the model hears {least} to {most:,}")
        return as_recording("audio", samples, RATE, "wav")


def _check_places(name: str, sense: Mapping[str, Any], tags: Sequence[str], prompt: str) -> None:
    """Raise OrtdeployError unless a prompt has these places of pictures or recordings in order, and no others."""
    places, rest, there = prompt.count(sense["begin"]), prompt, True
    if places and not tags:
        raise OrtdeployError(f"the prompt has a place for {name}, and the row gives none")
    for tag in tags:
        _, found, rest = rest.partition(tag)
        there = there and bool(found)
    if places != len(tags) or not there:
        needed = "one place" if len(tags) == 1 else f"{len(tags)} places"
        raise OrtdeployError(f"the prompt needs {needed} for {name}, {' '.join(dict.fromkeys(tags))}, and has {places}")
    if "between" in sense and len(tags) > 1 and "".join(tags[:2]) in prompt:
        raise OrtdeployError(f"{''.join(tags[:2])} would be taken for one picture: write text between them")


def png_of(pixels: Array) -> bytes:
    """Return a picture, uint8 [height, width, 1 or 3], as a PNG that is not compressed. Raises OrtdeployError."""
    shape = pixels.shape
    is_picture = pixels.dtype == np.uint8 and pixels.ndim == _RANK and shape[2] in {1, _COLORS}
    if not is_picture or not 0 < min(shape) <= max(shape) <= _LARGEST:
        told = f"a picture is uint8 [height, width, 1 or 3], of sides up to {_LARGEST:,} pixels"
        raise OrtdeployError(f"a picture is {pixels.dtype} {list(shape)}, and {told}")
    height, width, _ = shape
    lines = np.zeros((height, 1 + width * _COLORS), np.uint8)  # a line begins with its filter, which is none
    lines[:, 1:] = np.broadcast_to(pixels, (height, width, _COLORS)).reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, _BITS, _RGB, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(lines.data, 0)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
