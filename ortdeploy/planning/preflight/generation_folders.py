"""Makes ONNX Runtime GenAI open the folders of models that write, so that a refusal is known before the run.

A child opens them with faces in place of their models, which takes no weights: what is tried is what lies beside, and
how texts are to be written. A success is remembered, as those of models are.
"""

import hashlib
import json
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from msgspec import to_builtins

from ortdeploy.deployment.resolved import Deployment
from ortdeploy.facts.host import GENAI
from ortdeploy.facts.models import DiffusionFacts
from ortdeploy.facts.preflight import Opening
from ortdeploy.files.scratch import scratch_folder
from ortdeploy.manifest.named_paths import path_from_manifest
from ortdeploy.manifest.pipelines import GENERATE, PresetSpec
from ortdeploy.planning.preflight.openings import KIND
from ortdeploy.presets.generation import search_of
from ortdeploy.runtime.generation import Writing, write_config, writing_of
from ortdeploy.runtime.trial_opening import TrialRequest, try_to_open
from ortdeploy.state import memo
from ortdeploy.versions import package_version, runtime_version


def open_folders(deployment: Deployment, rejected: Collection[str], state_dir: Path) -> dict[str, Opening]:
    """Return the outcome of opening each folder, by pipeline; those of models with errors are left out."""
    found: dict[str, Opening] = {}
    packages = deployment.facts.runtime.packages
    for pipeline in deployment.spec.pipelines:
        preset, facts = pipeline.preset, deployment.facts.diffusion.get(pipeline.name)
        if preset is None or preset.kind != GENERATE or facts is None or facts.problem is not None:
            continue
        if GENAI.module not in packages or any(name in rejected for name in preset.parts.values()):
            continue
        how = writing_of(search_of(preset, facts))
        key = _key(facts, how)
        known = memo.get(state_dir, KIND, key) is not None
        opening = Opening() if known else _try(deployment, preset, how)
        if opening is not None:
            found[pipeline.name] = opening
            if not known and opening.refusal is None:
                memo.put(state_dir, KIND, key, True)
    return found


def _try(deployment: Deployment, preset: PresetSpec, how: Writing) -> Opening | None:
    """Open a folder; return None if nothing was proven, as without disk space for its links."""
    from ortdeploy.graph.face import face_of  # noqa: PLC0415  takes a moment, and most folders were opened before

    models = {model.spec.name: model.facts for model in deployment.models}
    with suppress(OSError), scratch_folder("genai") as scratch:
        for part, name in preset.parts.items():
            (scratch.path / preset.files[part]).write_bytes(face_of(models[name]))
        whole = {part: {"graph_optimization_level": "ORT_DISABLE_ALL", "provider_options": []} for part in preset.parts}
        folder = path_from_manifest(deployment.spec, preset.folder).resolve()
        write_config((folder,), scratch.path, whole, {part: {} for part in preset.parts})
        writing = {**to_builtins(how), "senses": preset.sees}
        return try_to_open([TrialRequest(outline=None, file=str(scratch.path), on_cpu=True, writing=writing)])[0]
    return None


def _key(facts: DiffusionFacts, how: Writing) -> str:
    depends = [facts.folder_sha256, to_builtins(how), runtime_version(), package_version(GENAI.name)]
    return hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()
