"""The provider catalogue, its schemas and the manifest's schema agree; values become the text that providers parse."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from support.provider_branches import rendered

from ortdeploy.diagnostics import Diagnostic
from ortdeploy.manifest.document import parse_document
from ortdeploy.manifest.schema_check import check_document
from ortdeploy.providers.catalogue import PROVIDERS, Provider, find_provider, other_names
from ortdeploy.providers.options import SHRINKAGE, options_schema, serialise, without_cpu_arena
from ortdeploy.schemas import bundled_schema, schema_names, schema_text


def provider(name: str) -> Provider:
    found = find_provider(name)
    assert found is not None
    return found


def test_every_provider_has_a_schema_and_every_schema_a_provider() -> None:
    files = {name.removeprefix("providers/") for name in schema_names() if name.startswith("providers/")}
    assert files == {one.short for one in PROVIDERS}


def test_the_catalogue_is_sorted() -> None:
    names = [one.name for one in PROVIDERS]
    assert names == sorted(names)


@pytest.mark.parametrize("one", PROVIDERS, ids=lambda one: one.short)
def test_every_option_says_what_it_is_since_when_and_who_says_so(one: Provider) -> None:
    schema = options_schema(one)
    Draft202012Validator.check_schema(schema)
    assert schema["x-booleans"] in {"1/0", "true/false", "True/False"}
    assert list(schema["properties"]) == sorted(schema["properties"])
    for name, facts in schema["properties"].items():
        assert facts["description"].endswith("."), name
        assert facts["x-since"], name
        assert facts["x-source"], name
        assert {"type", "enum", "anyOf"} & set(facts), name
        if "default" in facts:
            Draft202012Validator(facts).validate(facts["default"])


def spelt(name: str) -> list[str]:
    """A name as people write it."""
    return [name, name.upper(), name.lower(), "-".join(name), name.replace("RT", "_rt"), f"{name} ", f" {name}"]


@given(st.text(alphabet="CUDAcudaEPepQNNqn-_ TRTxRocm.", max_size=12))
def test_a_spelling_is_of_a_provider_for_the_schema_where_it_is_for_the_catalogue(name: str) -> None:
    branches = json.loads(schema_text("deployment"))["$defs"]["providerEntry"]["anyOf"][1]["allOf"]
    found = [b for b in branches if re.search(b["if"]["properties"]["provider"]["pattern"], name)]
    known = find_provider(name)
    assert len(found) == (known is not None)


def test_the_manifests_schema_refers_to_the_options_of_every_living_provider() -> None:
    branches = json.loads(schema_text("deployment"))["$defs"]["providerEntry"]["anyOf"][1]["allOf"]
    for one in PROVIDERS:
        spellings = [spelling for name in (one.name, one.short, *other_names(one)) for spelling in spelt(name)]
        assert {find_provider(spelling) for spelling in spellings} == {one}
        for spelling in spellings:
            found = [b for b in branches if re.search(b["if"]["properties"]["provider"]["pattern"], spelling)]
            assert len(found) == 1, spelling
        for branch in found:
            assert branch["then"]["properties"]["options"]["$ref"] == f"providers/{one.short}.schema.json"


def test_the_branches_of_providers_are_written_from_the_catalogue() -> None:
    text = schema_text("deployment")
    assert rendered(text) == text, "run python tests/support/provider_branches.py"


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("CUDA", {"gpu_mem_limit": "2GiB", "use_tf32": False, "device_id": 1}, {"gpu_mem_limit": "2147483648", "use_tf32": "0", "device_id": "1"}),
        ("CUDA", {"gpu_mem_limit": "1.5 GB"}, {"gpu_mem_limit": "1500000000"}),
        ("TensorRT", {"trt_fp16_enable": True, "trt_dla_enable": False}, {"trt_fp16_enable": "True", "trt_dla_enable": "False"}),
        ("QNN", {"enable_htp_fp16_precision": True, "backend_type": "htp"}, {"enable_htp_fp16_precision": "1", "backend_type": "htp"}),
        ("OpenVINO", {"enable_causallm": True, "load_config": {"CPU": {"NUM_STREAMS": 2}}}, {"enable_causallm": "true", "load_config": '{"CPU": {"NUM_STREAMS": 2}}'}),
        ("DirectML", {"disable_metacommands": True}, {"disable_metacommands": "true"}),
    ],
)  # fmt: skip
def test_values_become_the_text_that_the_provider_parses(
    name: str, options: dict[str, Any], expected: dict[str, str]
) -> None:
    assert serialise(provider(name), options) == expected


def test_values_for_an_unknown_provider_become_text_as_session_config_entries_do() -> None:
    options = {"on": True, "off": False, "size": "2GiB", "n": 3, "more": {"a": [1]}}
    assert serialise(None, options) == {"on": "1", "off": "0", "size": "2GiB", "n": "3", "more": '{"a": [1]}'}


def problems(entry: str) -> list[Diagnostic]:
    text = f"version: 1\nmodels:\n  m:\n    path: m.onnx\n    providers:\n      - {entry}\n"
    document, found = parse_document(text.encode(), "m.yaml")
    assert document is not None
    assert not found
    return list(check_document(document))


@pytest.mark.parametrize(
    ("entry", "rule", "words"),
    [
        ("{provider: CUDA, options: {cuda_mem_limit: 2GB}}", "unknown-key", 'Did you mean "gpu_mem_limit"?'),
        ("{provider: CUDAExecutionProvider, options: {gpu_mem_limit: lots}}", "value-not-allowed", "gpu_mem_limit"),
        (
            "{provider: CUDA, options: {arena_extend_strategy: kSameAsRequestd}}",
            "value-not-allowed",
            'Did you mean "kSameAsRequested"?',
        ),
        ("{provider: QNN, options: {backend_type: npu}}", "value-not-allowed", "allowed are cpu, gpu, htp"),
        ("{provider: QNN, options: {vtcm_mb: -4}}", "value-not-allowed", "at least 0"),
        ("{provider: QNN, options: {htp_performance_mode: turbo}}", "value-not-allowed", "allowed are burst"),
        ("{provider: OpenVINO, options: {num_of_thread: 2}}", "unknown-key", 'Did you mean "num_of_threads"?'),
        ("{provider: TensorRT, options: {trt_fp16_enable: 1}}", "wrong-type", "true or false"),
        ("{provider: tensorrt, options: {trt_fp16_enable: 1}}", "wrong-type", "true or false"),
        ("{provider: openvino, options: {num_of_thread: 2}}", "unknown-key", 'Did you mean "num_of_threads"?'),
        (
            "{provider: OpenVINO, options: {load_config: {CPU: {PERFORMANCE_HNT: LATENCY}}}}",
            "unknown-key",
            '"PERFORMANCE_HINT"?',
        ),
        (
            "{provider: OpenVINO, options: {load_config: {CPU: {PERFORMANCE_HINT: FAST}}}}",
            "value-not-allowed",
            "allowed are LATENCY, THROUGHPUT, CUMULATIVE_THROUGHPUT",
        ),
        (
            "{provider: OpenVINO, options: {load_config: {CPU: {NUM_STREAMS: many}}}}",
            "value-not-allowed",
            "AUTO or NUMA",
        ),
        (
            "{provider: OpenVINO, options: {load_config: {CPU: {PERF_COUNT: nope}}}}",
            "value-not-allowed",
            "allowed are true, false",
        ),
        ("{provider: OpenVINO, options: {load_config: {CPU: 1}}}", "wrong-type", "load_config.CPU must be a mapping"),
        ("{provider: OpenVINO, options: {load_config: {GPUU: {}}}}", "unknown-key", 'Did you mean "GPU"?'),
        (
            "{provider: OpenVINO, options: {load_config: {GPU.1: {PERFORMANCE_HNT: LATENCY}}}}",
            "unknown-key",
            '"PERFORMANCE_HINT"?',
        ),
        (
            """{provider: OpenVINO, options: {load_config: '{"CPU": {"PERFORMANCE_HNT": "LATENCY"}}'}}""",
            "unknown-key",
            '"PERFORMANCE_HINT"?',
        ),
        ("""{provider: OpenVINO, options: {load_config: '{"CPU": '}}""", "value-not-allowed", "is not JSON"),
        ("""{provider: OpenVINO, options: {load_config: '[1]'}}""", "wrong-type", "must be a mapping"),
        (
            "{provider: TensorRT, options: {trt_profile_min_shapes: 'image:1,3,8'}}",
            "value-not-allowed",
            "image:1x3x224x224",
        ),
        ("{provider: QNN, options: {op_packages: 'Relu=lib.so'}}", "value-not-allowed", "Relu:libMyOps.so"),
        (
            "{provider: TensorRT, options: {trt_engine_cache_enable: true, trt_engine_cache_prefix: ../../a}}",
            "value-not-allowed",
            "without a folder",
        ),
        (
            "{provider: OpenVINO, options: {load_config: {AUTO: {DEVICE_PROPERTIES: {CPU: {CACHE_DIRR: c}}}}}}",
            "unknown-key",
            'Did you mean "CACHE_DIR"?',
        ),
        (
            "{provider: OpenVINO, options: {load_config: {AUTO: {DEVICE_PROPERTIES: '{CPU:{CACHE_DIR:/etc}}'}}}}",
            "value-not-allowed",
            "written in a mapping instead",
        ),
        ("{provider: OpenVINO, options: {load_config: {NPU: {NPUW_CACHE_DIR: 3}}}}", "wrong-type", "must be text"),
        ("{provider: CPU, options: {nonsense: 1}}", "unknown-key", "nonsense"),
        ("{provider: Dml, options: {device_id: -1}}", "value-not-allowed", "at least 0"),
    ],
)
def test_a_wrong_option_is_refused_with_its_place(entry: str, rule: str, words: str) -> None:
    """Most providers ignore such options, or fall back to the CPU, without a word."""
    (found,) = problems(entry)
    assert (found.rule, found.span.line) == (rule, 6)
    assert found.span.column > 30
    assert words in found.detail


@pytest.mark.parametrize(
    "entry",
    [
        "{provider: CUDA, options: {gpu_mem_limit: 2GiB, arena_extend_strategy: kSameAsRequested, device_id: 0}}",
        "{provider: QNN, options: {backend_type: htp, vtcm_mb: 8, htp_arch: 73, soc_model: 43}}",
        "{provider: OpenVINO, device: NPU, options: {load_config: {NPU: {NPU_COMPILATION_MODE: x}}}}",
        "{provider: OpenVINO, options: {load_config: {CPU: {NUM_STREAMS: 2, INFERENCE_NUM_THREADS: '4', PERF_COUNT: true}}}}",
        "{provider: OpenVINO, options: {load_config: {CPU: {CPU_RUNTIME_CACHE_CAPACITY: 0}, GPU.0: {GPU_QUEUE_PRIORITY: LOW}}}}",
        """{provider: OpenVINO, options: {load_config: '{"AUTO": {"PERFORMANCE_HINT": "THROUGHPUT"}}'}}""",
        "{provider: OpenVINO, options: {load_config: ov.json}}",
        "{provider: OpenVINO, options: {load_config: {AUTO: {DEVICE_PROPERTIES: {GPU.0: {CACHE_DIR: c}}}}}}",
        "{provider: OpenVINO, options: {load_config: {HETERO: {DEVICE_PROPERTIES: '{CPU:{NUM_STREAMS:4}}'}}}}",
        "{provider: TensorRT, options: {trt_profile_min_shapes: 'a:0:1x3,mask:1'}}",
        "{provider: QNN, options: {op_packages: 'Relu:lib.so:Symbol:HTP,Add:C:/x.dll:Symbol'}}",
        "{provider: VitisAI, options: {config_file: vaip.json, anything: 1}}",
        "{provider: NoSuchProvider, options: {anything: 1}}",
        "CUDA",
    ],
)
def test_right_options_are_taken(entry: str) -> None:
    assert problems(entry) == []


def test_the_printed_schema_is_whole_and_finds_the_same() -> None:
    validator = Draft202012Validator(json.loads(bundled_schema("deployment")))
    manifest: dict[str, Any] = {
        "version": 1,
        "models": {"m": {"path": "m.onnx", "providers": [{"provider": "CUDA", "options": {"device_id": 0}}]}},
    }
    assert validator.is_valid(manifest)
    manifest["models"]["m"]["providers"][0]["options"] = {"cuda_mem_limit": 1}
    assert not validator.is_valid(manifest)


def test_explain_says_in_which_formats_a_provider_computes(cli: Cli) -> None:
    page = cli("explain", "cuda").out
    assert "Numbers:\n  CUDA may multiply float32 in TF32" in page
    assert "Numbers:" not in cli("explain", "xnnpack").out


def test_explain_prints_a_providers_options(cli: Cli) -> None:
    page = cli("explain", "OpenVINO").out
    assert "onnxruntime-ep-openvino" in page
    assert "  load_config: object or string" in page
    assert "built-in only" in page
    assert "at least 0, default 0" in cli("explain", "QNN").out
    assert "It has no provider options." in cli("explain", "CPU").out


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"CPU": {"PERFORMANCE_HINT": "LATENCY"}}', None),
        ('{"CPU": {"PERFORMANCE_HNT": "LATENCY"}}', 'Did you mean "PERFORMANCE_HINT"?'),
        ('{"CPU": ', "It is not JSON"),
        ("[1]", "must be a mapping"),
        ('{"CPU": {"CACHE_DIR": "cache"}}', 'CPU.CACHE_DIR names "cache", and paths in such a file'),
        ('{"CPU": {"CACHE_DIR": "/tmp/x"}}', "Write load_config as a mapping in the manifest"),
        (None, "There is no file ov.json"),
    ],
)
def test_a_document_in_a_file_is_looked_into_by_plan(
    cli: Cli, deployment: Path, content: str | None, words: str | None
) -> None:
    if content is not None:
        (deployment / "ov.json").write_text(content)
    manifest = deployment / "m.yaml"
    chain = "providers: [{provider: openvino, options: {load_config: ov.json}}, CPU], on_unavailable: next"
    manifest.write_text(manifest.read_text().replace("double.onnx}", f"double.onnx, {chain}}}"))
    found = cli("plan", deployment, "--format", "json").json["diagnostics"]
    details = [one["detail"] for one in found if one["rule"] == "unusable-option-path"]
    assert [words in detail for detail in details] == ([] if words is None else [True]), found


@pytest.mark.parametrize("name", ["dml", "DirectML", "cuda", "openvino-ep", "TRT", "oneDNN"])
def test_explain_takes_other_names(cli: Cli, name: str) -> None:
    found = find_provider(name)
    assert found is not None
    assert cli("explain", name).out.startswith(f"{found.name}\n")


@pytest.mark.parametrize(
    ("shrinks", "left"), [(None, None), ("cpu:0", None), ("cpu", None), ("cpu:0;gpu:0", "gpu:0"), ("gpu:1", "gpu:1")]
)
def test_a_session_without_an_arena_on_the_cpu_is_not_asked_to_shrink_it(shrinks: str | None, left: str | None) -> None:
    config = {"other": "1", **({SHRINKAGE: shrinks} if shrinks else {})}
    run = without_cpu_arena({"log_severity_level": 3, "config": config})
    assert run == {"log_severity_level": 3, "config": {"other": "1", **({SHRINKAGE: left} if left else {})}}
