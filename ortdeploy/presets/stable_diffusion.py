"""Reads a Stable-Diffusion-1/2-shaped folder into `DiffusionFacts`: its scheduler, and the inputs of its components.

Two layouts are on disk, diffusers' own ONNX one and optimum-onnx's. They differ in element types and ranks, which the
graphs tell; neither's model_index.json is needed.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.models import AdapterFacts, DiffusionFacts, ModelFacts, ValueFacts
from ortdeploy.facts.problems import Problem
from ortdeploy.files.names import is_file
from ortdeploy.files.numpy_files import map_npy
from ortdeploy.manifest.pipelines import DIFFUSION, PresetSpec
from ortdeploy.operations.tokenize_clip import DEFAULT_LENGTH, ClipTokenizer
from ortdeploy.presets.component_contracts import ANSWERS, COMPONENTS, latent_shape
from ortdeploy.presets.folder import PROMPTS, FolderError, PresetFiles, folder_digest, image_type, missing_folder
from ortdeploy.presets.optimum import read_optimum
from ortdeploy.presets.schedulers import read_scheduler
from ortdeploy.tensors.contracts import ContractError, FormalParameter
from ortdeploy.tensors.types import ROWS, Shape, TensorType

_FILES = ("tokenizer/vocab.json", "tokenizer/merges.txt", "scheduler/scheduler_config.json")
_CONFIG = "tokenizer/tokenizer_config.json"
"""It may be there, and says then what prompts are filled up with."""


def read_diffusion(
    root: Path, preset: PresetSpec, models: Mapping[str, ModelFacts], adapters: Mapping[str, AdapterFacts]
) -> DiffusionFacts:
    """Read what lies beside the models, and hold the components against each other; what is wrong is the problem.

    `root` is the manifest's folder. What the components' adapters bring need not be fed.
    """
    if preset.kind == DIFFUSION:
        return read_optimum(root, preset, models)
    folder = root / preset.folder
    bare = DiffusionFacts(inputs=PROMPTS, outputs=(ValueFacts(name="image", kind="tensor", tensor=image_type(preset)),))
    missing = missing_folder(root, preset)
    if missing is not None:
        return replace(bare, problem=missing)
    try:
        files = PresetFiles(folder)
        scheduler, digest = _read_files(files, folder, preset.folder)
        parts = {part: models[name] for part, name in preset.parts.items()}
        unusable = next((facts.problem for facts in parts.values() if facts.problem), None)
        if unusable is not None:
            return replace(bare, problem=unusable)
        ports = {part: _ports(part, facts, _adapted(part, preset, adapters)) for part, facts in parts.items()}
        _check_together(parts, ports, preset, files)
        if preset.latents is not None:
            _check_latents(root / preset.latents, preset)
    except FolderError as error:
        return replace(bare, problem=Problem(kind="preset", detail=str(error)))
    return replace(
        bare,
        sha256=digest,
        folder_sha256=folder_digest(digest, parts),
        files=files.hashed,
        scheduler=scheduler,
        ports=ports,
    )


def painted_shapes(preset: PresetSpec, ports: Mapping[str, Any], rows: int) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return the shapes that components are fed, by part and input; under guidance the unet gets twice the rows."""
    if not ports:
        return {}
    guided = rows * 2 if preset.guidance_scale > 1 else rows
    latents = latent_shape(preset.height, preset.width)
    length, time = ports["text_encoder"]["length"], (1,) * ports["unet"]["timestep"]["rank"]
    sample = (ports["unet"]["rows"] or guided, *latents)
    return {
        "text_encoder": {"input_ids": (rows, length)},
        "unet": {
            "sample": sample,
            "timestep": time,
            "encoder_hidden_states": (sample[0], length, ports["unet"]["width"]),
        },
        "vae_decoder": {"latent_sample": (1, *latents)},
    }


def _read_files(files: PresetFiles, folder: Path, shown: str) -> tuple[Mapping[str, Any], str]:
    """Return the scheduler's settings, and the digest of the files beside the models."""
    digest = hashlib.sha256()
    for name in (*_FILES, *([_CONFIG] if is_file(folder / _CONFIG) else [])):
        try:
            digest.update(files.read(name))
        except OSError as error:
            detail = f"{shown}/{name} cannot be read: {error.strerror}. Provide the whole folder."
            raise FolderError(detail) from error
    config = _json(files, "scheduler/scheduler_config.json", shown)
    scheduler, problem = read_scheduler(config)
    if problem:
        raise FolderError(f"{shown} cannot be painted with: {problem}.")
    return scheduler, digest.hexdigest()


def _json(files: PresetFiles, name: str, shown: str) -> Mapping[str, Any]:
    try:
        found = json.loads(files.read(name).decode("utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise FolderError(f"{shown}/{name} is no JSON text: {error}.") from error
    if not isinstance(found, dict):
        raise FolderError(f"{shown}/{name} is no JSON object.")
    return found


def _adapted(part: str, preset: PresetSpec, adapters: Mapping[str, AdapterFacts]) -> set[str]:
    """Return the inputs that the adapters of a component bring."""
    given = [adapters[name] for name in preset.adapters.get(part, ()) if name in adapters]
    return {parameter.name for adapter in given for parameter in adapter.parameters}


def _ports(part: str, facts: ModelFacts, adapted: set[str]) -> dict[str, Any]:
    """Return how a component is fed: by input its name, element type and rank; its output; the rows that it takes."""
    known = {value.name: value for value in facts.inputs}
    found: dict[str, Any] = {}
    for one in COMPONENTS[part].inputs:
        if one.name not in known:
            raise FolderError(f"{part} has no input {one.name}; it has {', '.join(known) or 'none'}.")
        tensor = known[one.name].tensor
        rank = len(one.forms[-1].axes) if tensor.shape is None else len(tensor.shape)
        found[one.name] = {"name": one.name, "dtype": tensor.dtype, "rank": rank}
    _hold(part, facts)
    fed = {*found, *adapted}
    others = [value.name for value in facts.inputs if value.name not in fed and not value.optional]
    if others:
        raise FolderError(f"{part} takes {', '.join(others)} too, which text-to-image does not feed.")
    first = known[COMPONENTS[part].inputs[0].name].tensor.shape or (None,)
    return {**found, "output": facts.outputs[0].name, "rows": first[0] if isinstance(first[0], int) else None}


def _hold(part: str, facts: ModelFacts) -> None:
    """Hold a component's graph against its contract. Raises FolderError."""
    contract, answers = COMPONENTS[part], ANSWERS[part]
    taken = {value.name: value.tensor for value in facts.inputs}
    try:
        contract.solve({}, {one.name: _any_rows(taken[one.name], one) for one in contract.inputs})
    except ContractError as error:
        raise FolderError(f"{part} is not what text-to-image feeds: {error}.") from error
    given = facts.outputs[0].tensor
    try:
        answers.solve({}, {answers.inputs[-1].name: given.with_shape(_unnamed(given.shape))})
    except ContractError as error:
        raise FolderError(f"text-to-image cannot use what {part} gives: {error}.") from error


def _any_rows(tensor: TensorType, parameter: FormalParameter) -> TensorType:
    """Return a graph's input; how many rows it takes, and what its symbols are called, is its own affair."""
    shape = _unnamed(tensor.shape)
    has_rows = any(ROWS in form.axes for form in parameter.forms)
    return tensor.with_shape((ROWS, *shape[1:]) if shape and has_rows else shape)


def _unnamed(shape: Shape | None) -> Shape | None:
    return None if shape is None else tuple(size if isinstance(size, int) else None for size in shape)


def _check_together(
    parts: Mapping[str, ModelFacts], ports: Mapping[str, dict[str, Any]], preset: PresetSpec, files: PresetFiles
) -> None:
    """Hold sizes against each other: tokens, embeddings, latents, and the vocabulary."""
    shape = _shape(parts["text_encoder"], "input_ids")
    length = shape[1] if isinstance(shape[1], int) else DEFAULT_LENGTH
    ports["text_encoder"]["length"] = length
    ports["unet"]["width"] = _shape(parts["unet"], "encoder_hidden_states")[2]
    hidden, wanted = _last(parts["text_encoder"]), _shape(parts["unet"], "encoder_hidden_states")[2]
    if isinstance(hidden, int) and isinstance(wanted, int) and hidden != wanted:
        raise FolderError(
            f"text_encoder makes embeddings of {hidden} numbers, and unet takes {wanted}: they are of two pipelines."
        )
    latents = latent_shape(preset.height, preset.width)
    for part, name in (("unet", "sample"), ("vae_decoder", "latent_sample")):
        for have, want in zip(latents, _shape(parts[part], name)[1:], strict=True):
            if isinstance(want, int) and want != have:
                sizes = ", ".join(map(str, _shape(parts[part], name)[1:]))
                raise FolderError(
                    f"{part} takes latents of {sizes}, and images of {preset.height} x {preset.width} pixels have "
                    f"{', '.join(map(str, latents))}. Set height and width to 8 times the last two."
                )
    limits = next(value.limits for value in parts["text_encoder"].inputs if value.name == "input_ids")
    vocabulary = _json(files, "tokenizer/vocab.json", preset.folder)
    try:
        ClipTokenizer(files.folder / "tokenizer")
    except (OSError, ValueError) as error:
        raise FolderError(f"{preset.folder}/tokenizer cannot be used: {error}.") from error
    highest = max((number for number in vocabulary.values() if isinstance(number, int)), default=0)
    if limits is not None and highest > limits[1]:
        raise FolderError(
            f"The vocabulary has ids up to {highest}, and text_encoder's table ends at {limits[1]}: they are of two "
            "pipelines."
        )


def _check_latents(path: Path, preset: PresetSpec) -> None:
    """Hold starting noise against the images' size."""
    wanted = latent_shape(preset.height, preset.width)
    try:
        latents = map_npy(path, preset.latents)
    except OrtdeployError as error:
        raise FolderError(f"latents: {error}.") from error
    if latents.dtype.kind not in "fiu":
        raise FolderError(f"latents: {preset.latents} is no array of numbers.")
    shape = latents.shape
    if shape not in {wanted, (1, *wanted)}:
        raise FolderError(f"latents: {preset.latents} is {list(shape)}, and the images need {list(wanted)}.")


def _shape(facts: ModelFacts, name: str) -> tuple[Any, ...]:
    tensor = next(value.tensor for value in facts.inputs if value.name == name)
    parameter = next(one for contract in COMPONENTS.values() for one in contract.inputs if one.name == name)
    return tensor.shape or (None,) * len(parameter.forms[-1].axes)


def _last(facts: ModelFacts) -> Any:
    shape = facts.outputs[0].tensor.shape
    return shape[-1] if shape else None
