"""Folders of ONNX Runtime GenAI that came with a model: what is read of them, and what is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY

from ortdeploy.facts.models import DiffusionFacts, ModelFacts
from ortdeploy.manifest.pipelines import PresetSpec, read_pipeline
from ortdeploy.presets.generation import read_generation, search_of

pytestmark = pytest.mark.unit


def folder_of(root: Path) -> Path:
    return Path(shutil.copytree(REPOSITORY / "deployments/models/writer", root / "writer"))


def preset_of(**said: Any) -> PresetSpec:
    preset = read_pipeline("write", {"preset": "generate", "from": "writer", **said}).preset
    assert preset is not None
    return preset


@pytest.mark.parametrize(
    ("said", "results", "on_demand"),
    [
        ({"preset": "text-to-image"}, {"image"}, set()),
        ({"preset": "diffusion", "arguments": {"json_schema": {"properties": {"a": {}}}}}, {"image"}, set()),
        (
            {"preset": "generate", "components": {"encoder": {}, "decoder": {}}},
            {"text", "tokens", "finish_reason", "input_tokens", "language"},
            set(),
        ),
        (
            {"preset": "generate"},
            {"text", "tokens", "finish_reason", "input_tokens", "seconds", "log_probabilities"},
            {"seconds", "log_probabilities"},
        ),
    ],
)
def test_each_preset_has_its_own_results(said: dict[str, Any], results: set[str], on_demand: set[str]) -> None:
    pipeline = read_pipeline("p", {"from": "folder", **said})
    assert set(pipeline.outputs) == results
    assert set(pipeline.on_demand) == on_demand


def read(root: Path, **said: Any) -> DiffusionFacts:
    return read_generation(root, preset_of(**said), {"write.decoder": ModelFacts(path="", sha256="1" * 64)})


def change(folder: Path, **changes: Any) -> None:
    """Change genai_config.json: `decoder__filename` is model.decoder.filename."""
    path = folder / "genai_config.json"
    config = json.loads(path.read_text())
    for name, value in changes.items():
        at = config["model"]
        *way, last = name.split("__")
        for key in way:
            at = at[key]
        at[last] = value
    path.write_text(json.dumps(config))


def test_every_file_beside_the_model_counts_for_the_digest(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    first = read(tmp_path)
    assert first.problem is None
    assert [file.name for file in first.files] == ["genai_config.json", "tokenizer.json", "tokenizer_config.json"]
    (folder / "special_tokens_map.json").write_text("{}")
    assert read(tmp_path).folder_sha256 != first.folder_sha256


def test_properties_of_a_schema_are_results_with_names_of_their_own(tmp_path: Path) -> None:
    folder_of(tmp_path)
    said: dict[str, Any] = {
        "properties": {"part": {"type": "string"}, "seconds": {"type": "number"}},
        "required": ["part"],
    }
    found = read(tmp_path, json_schema=said)
    assert found.problem is not None
    assert "other results are: seconds" in found.problem.detail
    del said["properties"]["seconds"]
    found = read(tmp_path, json_schema=said)
    assert found.problem is None
    assert {one.name: one.tensor.dtype for one in found.outputs}["part"] == "string"


def test_keys_and_values_of_a_whole_context_are_counted(tmp_path: Path) -> None:
    change(folder_of(tmp_path), context_length=1000, decoder__head_size=10, decoder__num_hidden_layers=3)
    assert read(tmp_path).ports["cache_bytes"] == 2 * 3 * 1 * 10 * 4 * 1000


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"decoder__filename": "../other.onnx"}, "../other.onnx"),
        ({"decoder__session_options": {"custom_ops_library": "evil.so"}}, "custom_ops_library"),
        ({"decoder__session_options": {"session.optimized_model_filepath": "x"}}, "optimized_model_filepath"),
        ({"decoder__pipeline": [{"embed": {"filename": "e.onnx"}}]}, "components: {embed: {file: e.onnx}}"),
        ({"decoder__pipeline": [{"embed": {"filename": "e.onnx", "x": 1}}]}, "`x`"),
        ({"decoder__pipeline": [5]}, "pipeline"),
        ({"vision": {"filename": "vision.onnx"}}, "has vision"),
        ({"encoder": {"filename": "/etc/passwd"}}, "has encoder"),
        ({"decoder__session_options": [1]}, "session_options"),
        ({"decoder__session_options": {"provider_options": 5}}, "provider_options"),
        ({"decoder__session_options": {"provider_options": [5]}}, "provider_options"),
        ({"decoder__session_options": {"intra_op_num_threads": {}}}, "intra_op_num_threads"),
        ({"decoder__inputs": 5}, "inputs"),
        ({"decoder__head_size": 10**30}, "head_size"),
        ({"decoder": 7}, "decoder"),
        ({"context_length": -1}, "context_length"),
        ({"context_length": "many"}, "context_length"),
    ],
)
def test_what_a_config_must_not_name_is_refused(tmp_path: Path, changes: dict[str, Any], what: str) -> None:
    change(folder_of(tmp_path), **changes)
    problem = read(tmp_path).problem
    assert problem is not None
    assert what in problem.detail


@pytest.mark.parametrize("text", ["", "[]", "{", '{"model": {}, "model": {}}', '{"model": 1}', "[" * 100_000])
def test_a_config_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (folder_of(tmp_path) / "genai_config.json").write_text(text)
    problem = read(tmp_path).problem
    assert problem is not None
    assert problem.kind == "preset"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{}", "no tokenizer"),
        ("[]", "no tokenizer"),
        ('{"model": {"vocab": {}}}', "no tokens"),
        ('{"model": {"vocab": {"a": 99999}}}', "another model"),
        ('{"model": {"vocab": {"a": -1}}}', "no tokenizer"),
        ('{"model": {"vocab": [["a", -1.5]]}}', None),
    ],
)
def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path, text: str, why: str | None) -> None:
    (folder_of(tmp_path) / "tokenizer.json").write_text(text)
    problem = read(tmp_path).problem
    assert (problem is None) == (why is None)
    assert problem is None or why is None or why in problem.detail


def test_a_folder_without_template_cannot_chat(tmp_path: Path) -> None:
    (folder_of(tmp_path) / "tokenizer_config.json").write_text("{}")
    assert read(tmp_path).problem is None
    problem = read(tmp_path, system="Be brief.").problem
    assert problem is not None
    assert "no chat template" in problem.detail


@pytest.mark.parametrize(
    ("said", "draws"),
    [
        ({}, False),
        ({"temperature": 0.7}, True),
        ({"temperature": 0}, False),
        ({"seed": 3}, True),
        ({"top_p": 0.9}, True),
    ],
)
def test_who_says_how_tokens_are_drawn_wants_them_drawn(tmp_path: Path, said: dict[str, Any], draws: bool) -> None:
    folder_of(tmp_path)
    assert search_of(preset_of(**said), read(tmp_path, **said))["do_sample"] is draws


@pytest.mark.parametrize("value", ['"x"', "NaN", "-1", "[1]", "1e999", "1.5", "true"])
def test_a_search_option_that_is_no_number_is_refused(tmp_path: Path, value: str) -> None:
    path = folder_of(tmp_path) / "genai_config.json"
    path.write_text(path.read_text().replace('"num_beams": 1', f'"num_beams": {value}'))
    problem = read(tmp_path).problem
    assert problem is not None
    assert "search.num_beams" in problem.detail


def test_a_folder_that_draws_says_so_in_words(tmp_path: Path) -> None:
    path = folder_of(tmp_path) / "genai_config.json"
    path.write_text(path.read_text().replace('"do_sample": false', '"do_sample": 5'))
    problem = read(tmp_path).problem
    assert problem is not None
    assert "search.do_sample is 5, and must be true or false" in problem.detail


@pytest.mark.parametrize("said", [{}, {"seed": 3}])
def test_a_temperature_of_0_in_the_folder_takes_the_best_token(tmp_path: Path, said: dict[str, Any]) -> None:
    path = folder_of(tmp_path) / "genai_config.json"
    path.write_text(path.read_text().replace('"do_sample": false', '"do_sample": true, "temperature": 0'))
    assert search_of(preset_of(**said), read(tmp_path, **said))["do_sample"] is False


@pytest.mark.parametrize(("said", "beams"), [({}, 4), ({"temperature": 0}, 4), ({"seed": 3}, 1), ({"num_beams": 2}, 2)])
def test_who_wants_tokens_drawn_gets_no_beams_of_the_folder(tmp_path: Path, said: dict[str, Any], beams: int) -> None:
    path = folder_of(tmp_path) / "genai_config.json"
    path.write_text(path.read_text().replace('"num_beams": 1', '"num_beams": 4'))
    assert search_of(preset_of(**said), read(tmp_path, **said))["num_beams"] == beams


def test_what_the_manifest_leaves_out_is_the_folders(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    config = json.loads((folder / "genai_config.json").read_text())
    config["search"] = {"do_sample": True, "temperature": 0.6, "top_p": 0.9}
    (folder / "genai_config.json").write_text(json.dumps(config))
    found = search_of(preset_of(top_p=0.5), read(tmp_path, top_p=0.5))
    assert (found["do_sample"], found["temperature"], found["top_p"], found["seed"]) == (True, 0.6, 0.5, 0)
