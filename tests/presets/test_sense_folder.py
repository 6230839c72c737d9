"""Folders of ONNX Runtime GenAI that see and hear: which processors are let through, and what is refused."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY

from ortdeploy.facts.models import DiffusionFacts, ModelFacts
from ortdeploy.manifest.pipelines import read_pipeline
from ortdeploy.presets.generation import read_generation

pytestmark = pytest.mark.unit

PARTS = ("vision", "embedding", "decoder")
DECODE: dict[str, Any] = {"name": "decode", "type": "DecodeImage", "attrs": {"color_space": "RGB"}}
RGB: dict[str, Any] = {"name": "rgb", "type": "ConvertRGB"}
RESIZE: dict[str, Any] = {"name": "resize", "type": "Resize", "attrs": {"width": 896, "height": 896}}
SMART: dict[str, Any] = {
    **RESIZE,
    "attrs": {
        "width": 540, "height": 360, "smart_resize": 1, "min_pixels": 3136, "max_pixels": 12_845_056,
        "patch_size": 14, "merge_size": 2,
    },
}  # fmt: skip
RESCALE: dict[str, Any] = {"name": "rescale", "type": "Rescale"}
NORMALIZE: dict[str, Any] = {"name": "n", "type": "Normalize", "attrs": {"mean": [0.5] * 3, "std": [0.5] * 3}}
PERMUTE: dict[str, Any] = {"name": "to_channel_first", "type": "Permute3D", "attrs": {"dims": [2, 0, 1]}}
SIZES: dict[str, Any] = {"name": "sizes", "type": "PixtralImageSizes"}
PATCH: dict[str, Any] = {
    "name": "patch", "type": "PatchImage", "attrs": {"patch_size": 14, "temporal_patch_size": 2, "merge_size": 2},
}  # fmt: skip
HD: dict[str, Any] = {
    "name": "hd", "domain": "com.microsoft.extensions", "type": "Phi3ImageTransform",
    "attrs": {"num_crops": 16, "num_img_tokens": 144},
}  # fmt: skip
SQUARES: dict[str, Any] = {
    "name": "g", "type": "Gemma4ImageTransform",
    "attrs": {"patch_size": 16, "max_soft_tokens": 280, "pooling_kernel_size": 3},
}  # fmt: skip
SOUND: dict[str, Any] = {"name": "audio_decoder", "type": "AudioDecoder"}
BANDS: dict[str, Any] = {
    "name": "gemma4_log_mel", "type": "Gemma4LogMel",
    "attrs": {
        "feature_size": 128, "sampling_rate": 16000, "frame_length_ms": 20.0, "hop_length_ms": 10.0,
        "min_frequency": 0.0, "max_frequency": 8000.0, "preemphasis": 0.0, "preemphasis_htk_flavor": 1,
        "fft_overdrive": 0, "mel_floor": 0.001,
    },
}  # fmt: skip
PROCESSORS = {
    "gemma4": [DECODE, SQUARES],
    "gemma3": [DECODE, RESIZE, RESCALE, NORMALIZE, PERMUTE],
    "qwen2_5_vl": [DECODE, RGB, SMART, RESCALE, NORMALIZE, PATCH],
    "mistral3": [DECODE, RGB, SMART, RESCALE, NORMALIZE, PERMUTE, SIZES],
    "phi3v": [DECODE, RGB, HD],
}
"""Those of the examples of onnxruntime-extensions, by the types of the models that they are for."""


def read(root: Path, kind: str, operators: list[dict[str, Any]], change: Callable[[Any], None] = lambda _: None) -> Any:
    """Return the facts of a folder with such a processor; `change` gets model.vision of its config."""
    folder = root / "describer"
    shutil.copytree(REPOSITORY / "deployments/models/describer", folder, dirs_exist_ok=True)
    steps = {"processor": {"name": "p", "transforms": [{"operation": one} for one in operators]}}
    (folder / "processor_config.json").write_text(json.dumps(steps))
    config = json.loads((folder / "genai_config.json").read_text())
    config["model"]["type"] = kind
    change(config["model"]["vision"])
    (folder / "genai_config.json").write_text(json.dumps(config))
    return facts_of(root)


def facts_of(root: Path, parts: Sequence[str] = PARTS) -> DiffusionFacts:
    said = {"preset": "generate", "from": "describer", "components": {key: {} for key in parts}}
    preset = read_pipeline("p", said).preset
    assert preset is not None
    models = {f"p.{part}": ModelFacts(path="", sha256=str(place) * 64) for place, part in enumerate(parts)}
    return read_generation(root, preset, models)


@pytest.mark.parametrize("kind", PROCESSORS)
def test_the_processors_of_known_models_are_let_through(tmp_path: Path, kind: str) -> None:
    found = read(tmp_path, kind, PROCESSORS[kind])
    assert found.problem is None
    assert found.ports["senses"]["images"]["begin"] in found.ports["senses"]["images"]["tag"]
    assert set(found.ports["parts"]) == {*PARTS}


def test_the_processor_counts_for_the_digest(tmp_path: Path) -> None:
    first, other = (read(tmp_path, "gemma3", [DECODE, one, RESCALE, PERMUTE]) for one in (RESIZE, SMART))
    assert "processor_config.json" in [file.name for file in first.files]
    assert first.folder_sha256 != other.folder_sha256


@pytest.mark.parametrize(
    ("operators", "why"),
    [
        ([DECODE, {"name": "x", "type": "RunScript"}, RESCALE, PERMUTE], "RunScript"),
        ([DECODE, {**RESIZE, "attrs": {"width": 10**6}}, RESCALE, PERMUTE], "width"),
        ([DECODE, {**SMART, "attrs": {"max_pixels": 10**12}}, RESCALE, PERMUTE], "max_pixels"),
        ([DECODE, {**SMART, "attrs": {"patch_size": 0}}, RESCALE, PERMUTE], "patch_size"),
        ([DECODE, RESIZE, {**RESCALE, "inputs": ["decode:0"]}, PERMUTE], "inputs"),
        ([DECODE, RESIZE, {**RESCALE, "attrs": {"file": "/etc/passwd"}}, PERMUTE], "file"),
        ([DECODE, RESIZE, RESCALE, {**PERMUTE, "attrs": {"dims": [2, 0, 7]}}], "dims"),
        ([DECODE, RESIZE, RESCALE, {**NORMALIZE, "attrs": {"mean": [0.5]}}, PERMUTE], "mean"),
        ([DECODE, RESIZE, RESCALE, *[NORMALIZE] * 20, PERMUTE], "transforms"),
        ([DECODE, RESIZE, PERMUTE], "Permute3D takes numbers, and there it gets bytes"),
        ([DECODE, RESIZE, RESCALE, PERMUTE, NORMALIZE], "Normalize takes numbers, and there it gets planes"),
        ([RESIZE, RESCALE, PERMUTE], "Resize takes bytes, and there it gets file"),
        ([DECODE, RESIZE, RESCALE], "ends with numbers, and a model of type gemma3 takes planes"),
        ([], "ends with file"),
    ],
)
def test_operators_that_are_not_known_or_get_what_they_do_not_take_are_refused(
    tmp_path: Path, operators: list[dict[str, Any]], why: str
) -> None:
    """The library runs them as they stand: one that gets bytes for numbers reads beyond their end."""
    problem = read(tmp_path, "gemma3", operators).problem
    assert problem is not None
    assert problem.kind == "preset"
    assert why in problem.detail


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("config_filename", "../elsewhere.json"),
        ("config_filename", "/etc/passwd"),
        ("config_filename", "missing.json"),
        ("adapter_filename", "lora.onnx_adapter"),
        ("pipeline", [{"filename": "x.onnx"}]),
        ("spatial_merge_size", 0),
        ("filename", "other.onnx"),
    ],
)
def test_what_a_config_must_not_name_of_the_vision_model_is_refused(tmp_path: Path, key: str, value: Any) -> None:
    problem = read(tmp_path, "gemma3", PROCESSORS["gemma3"], lambda vision: vision.update({key: value})).problem
    assert problem is not None
    assert problem.kind == "preset"


@pytest.mark.parametrize("text", ["{", "[]", '{"processor": {}, "processor": {}}', '{"processor": 5}', "[" * 10**5])
def test_a_processor_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    read(tmp_path, "gemma3", [])
    (tmp_path / "describer/processor_config.json").write_text(text)
    problem = facts_of(tmp_path).problem
    assert problem is not None
    assert "describer/processor_config.json" in problem.detail


def hear(root: Path, operators: list[dict[str, Any]], *parts: str) -> DiffusionFacts:
    """Return the facts of a folder that hears beside text, with such a processor of sound."""
    read(root, "gemma4", PROCESSORS["gemma4"])
    folder = root / "describer"
    steps = {"feature_extraction": {"sequence": [{"operation": one} for one in operators]}}
    (folder / "sound.json").write_text(json.dumps(steps))
    config = json.loads((folder / "genai_config.json").read_text())
    config["model"]["speech"] = {"filename": "speech.onnx", "config_filename": "sound.json"}
    (folder / "genai_config.json").write_text(json.dumps(config))
    return facts_of(root, parts or ("speech", *PARTS))


def test_a_processor_of_sound_is_let_through_and_says_how_long_recordings_are(tmp_path: Path) -> None:
    found = hear(tmp_path, [SOUND, BANDS])
    assert found.problem is None
    assert found.ports["senses"]["audio"] == {
        "tag": "<|audio|>", "begin": "<|audio", "most": 480_000, "least": 321,
    }  # fmt: skip
    longer = hear(tmp_path, [{**SOUND, "attrs": {"max_samples": 16_000}}, BANDS])
    assert longer.ports["senses"]["audio"]["most"] == 16_000
    assert [one.name for one in found.inputs if one.default == ()][:2] == ["images", "audio"]


@pytest.mark.parametrize(
    ("operators", "why"),
    [
        ([SOUND], "ends with samples, and a model of type gemma4 takes bands"),
        ([BANDS], "Gemma4LogMel takes samples, and there it gets file"),
        ([DECODE, SQUARES], "ends with patches and places"),
        ([{**SOUND, "attrs": {"max_samples": 0}}, BANDS], "max_samples"),
        ([{**SOUND, "attrs": {"target_sample_rate": 8000}}, BANDS], "target_sample_rate"),
        ([SOUND, {**BANDS, "attrs": {"frame_length_ms": 0.0}}], "frame_length_ms"),
        ([SOUND, {**BANDS, "attrs": {"feature_size": 10**9}}], "feature_size"),
    ],
)
def test_a_processor_of_sound_that_is_not_known_is_refused(
    tmp_path: Path, operators: list[dict[str, Any]], why: str
) -> None:
    problem = hear(tmp_path, operators).problem
    assert problem is not None
    assert why in problem.detail


def test_a_manifest_that_leaves_out_what_hears_is_told_all_parts(tmp_path: Path) -> None:
    problem = hear(tmp_path, [SOUND, BANDS], *PARTS).problem
    assert problem is not None
    assert "speech: {file: speech.onnx}" in problem.detail
    assert "embedding: {file: embedding.onnx}" in problem.detail


def test_models_of_other_types_do_not_see(tmp_path: Path) -> None:
    for kind, why in (("phi4mm", "by adapters of its folder"), ("llama", "no vision is known"), ("whisper", "hears")):
        problem = read(tmp_path, kind, PROCESSORS["gemma3"]).problem
        assert problem is not None
        assert why in problem.detail
