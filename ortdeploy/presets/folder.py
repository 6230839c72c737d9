"""What the folders of all presets share: the columns from which images are made, and one digest of all files."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortdeploy.facts.data import HashedFile
from ortdeploy.facts.models import ModelFacts, ValueFacts
from ortdeploy.facts.problems import Problem
from ortdeploy.files.json_text import object_once
from ortdeploy.files.names import is_folder
from ortdeploy.files.opening import read_whole
from ortdeploy.manifest.pipelines import PresetSpec
from ortdeploy.tensors.types import ROWS, TensorType

_TEXT = TensorType("string", (ROWS,))

PROMPTS = (
    ValueFacts(name="prompt", kind="tensor", tensor=_TEXT),
    ValueFacts(name="negative_prompt", kind="tensor", tensor=_TEXT, default=()),
    ValueFacts(name="seed", kind="tensor", tensor=TensorType("int64", (ROWS,)), default=(), limits=(0, 2**32 - 1)),
)
"""The columns of every job that makes images; only the prompt must be there."""


class FolderError(Exception):
    """Why a folder cannot be used, in full sentences."""


def missing_folder(root: Path, preset: PresetSpec) -> Problem | None:
    """Say that a folder itself is not there; its files and models need not be spoken of then."""
    folders = (preset.folder, *([preset.image_folder] if preset.image_folder else []))
    missing = next((one for one in folders if not is_folder(root / one)), None)
    if missing is None:
        return None
    if (root / missing).is_file():
        around = Path(missing).parent.as_posix()
        return Problem(kind="folder", detail=f"{missing} is a file. Name the folder around it: {around}.")
    return Problem(kind="folder", detail=f"There is no folder {missing}. Paths are relative to the manifest.")


def image_type(preset: PresetSpec, channels: int = 3) -> TensorType:
    """Return the type of images of a preset's size, rows first."""
    return TensorType("uint8", (ROWS, preset.height, preset.width, channels), "NHWC")


def folder_digest(beside: str, parts: Mapping[str, ModelFacts]) -> str:
    """Return the digest of a list of digests: each component's by its name, and that of the files beside them."""
    lines = [f"{facts.sha256}  {part}\n" for part, facts in sorted(parts.items())]
    return hashlib.sha256("".join([*lines, f"{beside}  files\n"]).encode()).hexdigest()


class PresetFiles:
    """The files of a folder that are read, each once: what is looked at is what its digest is of."""

    def __init__(self, folder: Path) -> None:
        """Take the folder; nothing is read yet."""
        self.folder = folder
        self._read: dict[str, tuple[bytes, HashedFile]] = {}

    def read(self, name: str) -> bytes:
        """Return a file's bytes. Raises OSError."""
        if name not in self._read:
            path = self.folder / name
            content = read_whole(path)
            digest = hashlib.sha256(content).hexdigest()
            self._read[name] = content, HashedFile(name=name, path=str(path), sha256=digest, size=len(content))
        return self._read[name][0]

    def read_object(self, name: str, folder: str) -> dict[str, Any]:
        """Return the JSON object of a file; messages call the folder as the manifest does. Raises FolderError.

        A key that is there twice is refused: GenAI reads with parsers of its own, which may take the other.
        """
        shown = f"{folder}/{name}"
        try:
            found = json.loads(self.read(name).decode("utf-8"), object_pairs_hook=object_once)
        except OSError as error:
            why = f"cannot be read: {error.strerror}. Provide a folder that ONNX Runtime GenAI's model builder wrote."
            raise FolderError(f"{shown} {why}") from error
        except (ValueError, RecursionError) as error:
            raise FolderError(f"{shown} is no JSON text: {error}.") from error
        if not isinstance(found, dict):
            raise FolderError(f"{shown} is no JSON object.")
        return found

    @property
    def hashed(self) -> tuple[HashedFile, ...]:
        """What was read, in the order of names."""
        return tuple(file for _, (_, file) in sorted(self._read.items()))
