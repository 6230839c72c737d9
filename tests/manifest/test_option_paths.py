"""Files that options name: relative to the manifest, wherever they stand in an option's text, and opened as planned."""

from typing import Any

import pytest
from support.specs import make_spec

from ortdeploy.manifest.option_paths import files_to_open, find_option_paths, with_full_provider_paths
from ortdeploy.providers.catalogue import find_provider

MANIFEST = """\
version: 1
models:
  m:
    path: m.onnx
    session: {config: {ep.context_source_model_path: source.onnx}}
    run: {config: {qnn.lora_config: lora.json}}
    providers:
      - {provider: OpenVINO, library: libs/own.so, options: {load_config: load.json}}
      - provider: TensorRT
        options:
          trt_extra_plugin_lib_paths: "libs/a.so;b.so;libs/c.so"
          trt_int8_calibration_table_name: cache/table
          trt_engine_cache_path: cache
      - provider: QNN
        options: {op_packages: "Relu:libs/relu.so:Own:HTP,Add:libAdd.so:Own", backend_path: libs/libQnnHtp.so}
jobs:
  j: {model: m, input: {path: data.npy}, output: {path: out}}
"""


def test_what_is_opened_with_a_session_is_known() -> None:
    spec = make_spec(MANIFEST)
    (model,) = spec.models
    assert set(files_to_open(model, map(spec.chain_of, model.sessions))) == {
        "libs/own.so",
        "load.json",
        "libs/a.so",
        "libs/c.so",
        "cache/table",
        "libs/relu.so",
        "libs/libQnnHtp.so",
        "source.onnx",
        "lora.json",
    }


def test_the_text_of_a_document_is_no_file() -> None:
    spec = make_spec(MANIFEST.replace("load.json", "{CPU: {PERFORMANCE_HINT: LATENCY}}"))
    (model,) = spec.models
    assert not any("PERFORMANCE" in name for name in files_to_open(model, map(spec.chain_of, model.sessions)))


def test_what_a_document_names_is_known_with_its_place() -> None:
    text = "{CPU: {CACHE_DIR: cache}, GPU: {WEIGHTS_PATH: weights.bin}}"
    spec = make_spec(MANIFEST.replace("load.json", text))
    (model,) = spec.models
    opened = set(files_to_open(model, map(spec.chain_of, model.sessions)))
    assert "weights.bin" in opened
    assert "cache" not in opened
    named = {option.at[-3:]: (option.kind, option.path) for option in find_option_paths(spec)}
    assert named["load_config", "CPU", "CACHE_DIR"] == ("new-folder", "cache")
    assert named["load_config", "GPU", "WEIGHTS_PATH"] == ("file", "weights.bin")


def test_each_path_in_an_option_is_looked_at() -> None:
    named = {(option.at[-1], option.path) for option in find_option_paths(make_spec(MANIFEST))}
    assert {
        ("trt_extra_plugin_lib_paths", "libs/a.so"),
        ("trt_extra_plugin_lib_paths", "libs/c.so"),
        ("op_packages", "libs/relu.so"),
    } <= named


@pytest.mark.parametrize(
    ("provider", "option", "text", "full"),
    [
        ("TensorRT", "trt_extra_plugin_lib_paths", "libs/a.so;b.so;../c.so", "/d/libs/a.so;b.so;/d/../c.so"),
        ("QNN", "op_packages", "Relu:libs/a.so:Own:HTP,Add:b.so:Own", "Relu:/d/libs/a.so:Own:HTP,Add:b.so:Own"),
        ("QNN", "backend_path", "libs/a.so", "/d/libs/a.so"),
        ("QNN", "backend_path", "a.so", "a.so"),
        ("OpenVINO", "load_config", "a.json", "/d/a.json"),
        ("OpenVINO", "load_config", '{"CPU": {}}', '{"CPU": {}}'),
        ("Nobody", "backend_path", "libs/a.so", "libs/a.so"),
        (
            "OpenVINO",
            "load_config",
            {"CPU": {"CACHE_DIR": "c", "NUM_STREAMS": 2}},
            {"CPU": {"CACHE_DIR": "/d/c", "NUM_STREAMS": 2}},
        ),
        ("OpenVINO", "load_config", '{"GPU.1": {"WEIGHTS_PATH": "w"}}', '{"GPU.1": {"WEIGHTS_PATH": "/d/w"}}'),
        (
            "OpenVINO",
            "load_config",
            {"NPU": {"NPUW_CACHE_DIR": "c", "NPU_X": "c"}},
            {"NPU": {"NPUW_CACHE_DIR": "/d/c", "NPU_X": "c"}},
        ),
        (
            "OpenVINO",
            "load_config",
            {"AUTO": {"DEVICE_PROPERTIES": {"GPU": {"CONFIG_FILE": "f"}}}},
            {"AUTO": {"DEVICE_PROPERTIES": {"GPU": {"CONFIG_FILE": "/d/f"}}}},
        ),
        ("OpenVINO", "load_config", {"CPU": {"CACHE_DIR": ""}}, {"CPU": {"CACHE_DIR": ""}}),
        ("OpenVINO", "load_config", '{"CPU": {"CACHE_DIR": ', '{"CPU": {"CACHE_DIR": '),
    ],
)
def test_paths_are_given_in_full(provider: str, option: str, text: Any, full: Any) -> None:
    assert with_full_provider_paths(find_provider(provider), {option: text}, "/d/{}".format) == {option: full}
