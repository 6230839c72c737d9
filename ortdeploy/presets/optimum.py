"""Reads a folder for optimum-onnx and checks the manifest's components against it, without importing optimum."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from ortdeploy.facts.models import DiffusionFacts, ModelFacts, ValueFacts
from ortdeploy.facts.problems import Problem
from ortdeploy.files.opening import read_text
from ortdeploy.manifest.pipelines import TEXT_TO_IMAGE, PresetSpec
from ortdeploy.presets.folder import PROMPTS, PresetFiles, folder_digest, image_type, missing_folder

_INDEX = "model_index.json"


def read_optimum(root: Path, preset: PresetSpec, models: Mapping[str, ModelFacts]) -> DiffusionFacts:
    """Return what goes in and comes out, and the digest of what lies beside the models; a problem where it is none."""
    folder = root / preset.folder
    parts = {part: models[name] for part, name in preset.parts.items()}
    problem = missing_folder(root, preset) or _problem(folder, preset)
    problem = problem or next((facts.problem for facts in parts.values() if facts.problem), None)
    files = PresetFiles(folder)
    digest = "" if problem else _digest(folder, files)
    return DiffusionFacts(
        sha256=digest,
        folder_sha256="" if problem else folder_digest(digest, parts),
        files=files.hashed,
        inputs=tuple(_inputs(preset)),
        outputs=(ValueFacts(name="image", kind="tensor", tensor=image_type(preset)),),
        problem=problem,
    )


def _inputs(preset: PresetSpec) -> Iterator[ValueFacts]:
    yield from PROMPTS
    if preset.task != TEXT_TO_IMAGE:
        yield ValueFacts(name="image", kind="tensor", tensor=image_type(preset))
    if preset.task == "inpainting":
        yield ValueFacts(name="mask_image", kind="tensor", tensor=image_type(preset, 1))


def _problem(folder: Path, preset: PresetSpec) -> Problem | None:
    """Say why optimum-onnx could not open the folder, or would open a session of its own."""
    detail = _detail(folder, preset)
    return Problem(kind="preset", detail=detail) if detail else None


def _detail(folder: Path, preset: PresetSpec) -> str | None:
    try:
        index = json.loads(read_text(folder / _INDEX))
    except OSError as error:
        return f"{preset.folder}/{_INDEX} cannot be read: {error.strerror}. Provide a folder that optimum-onnx wrote."
    except (ValueError, RecursionError) as error:
        return f"{preset.folder}/{_INDEX} is no JSON text: {error}."
    if not isinstance(index, dict) or "_class_name" not in index:
        return f"{preset.folder}/{_INDEX} names no _class_name: it is not the index of a pipeline."
    there = {path.parent.name for path in folder.glob("*/model.onnx")}
    unnamed = sorted(there - set(preset.parts))
    if unnamed:
        add = ", ".join(f"{name}: {{}}" for name in unnamed)
        return f"{preset.folder} has {', '.join(unnamed)}, and the manifest does not say so. Add components: {{{add}}}."
    bare = sorted(name for name in there if not (folder / name / "config.json").is_file())
    return f"{preset.folder}/{bare[0]}/config.json is missing; optimum-onnx reads it." if bare else None


def _digest(folder: Path, read: PresetFiles) -> str:
    """Return the digest of the small files that decide what is painted: settings and vocabularies."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in {".json", ".txt", ".model"} and path.is_file())
    digest = hashlib.sha256()
    for path in files:
        name = path.relative_to(folder).as_posix()
        digest.update(f"{name}\0".encode())
        digest.update(read.read(name))
    return digest.hexdigest()
