"""The documented failures of providers and sessions (users' issue threads, by their numbers in our notes), one by one.

Each is tried wrong and right. Wrong, it is refused or warned of from the text, the graph and the machine's facts, at the
line and with a remedy; what only a session can tell is tried for real in tests/runtime.
"""

from typing import Any

import pytest
from support.facts import make_deployment
from support.specs import make_spec

from ortdeploy.manifest.document import parse_document
from ortdeploy.manifest.schema_check import check_document
from ortdeploy.providers.catalogue import find_provider
from ortdeploy.providers.options import serialise
from ortdeploy.rules.catalogue import DEPLOYMENT_RULES, SPEC_RULES, load_rules
from ortdeploy.rules.protocol import check_rules

MANIFEST = """\
version: 1
models:
  digits: {path: digits.onnx, MODEL}
jobs:
  read: {model: digits, input: {path: data.npy}, JOB output: {path: outbox/read}}
"""
ALL = [
    f"{name}ExecutionProvider"
    for name in ("Tensorrt", "CUDA", "Dml", "Xnnpack", "OpenVINO", "VitisAI", "QNN", "WebGpu", "CPU")
]
QNN_HTP = ["QNNExecutionProvider 0 NPU Qualcomm HTP"]
OPENVINO = ["OpenVINOExecutionProvider 0 CPU Intel CPU", "OpenVINOExecutionProvider 1 NPU Intel NPU"]
STATIC = {"digits": {"inputs": {"image": "float32[32,1,8,8]"}, "outputs": {"scores": "float32[32,10]"}}}
FULL = {"read": {"format": "npy", "columns": {"array": "float32[rows,1,8,8]"}, "rows": 96}}
PLUGINS = {"providers": ["CPUExecutionProvider"], "devices": [*QNN_HTP, *OPENVINO], "models": STATIC, "inputs": FULL}
HERE = {"providers": ALL, "models": STATIC, "inputs": FULL}
CPU_ONLY = {"providers": ["AzureExecutionProvider", "CPUExecutionProvider"]}
DYNAMIC = {"providers": ALL}


def nodes(*texts: str, **more: Any) -> dict[str, Any]:
    return {**HERE, "models": {"digits": {**STATIC["digits"], "nodes": list(texts), **more}}}


Case = tuple[str, str, dict[str, Any], str, str, dict[str, Any]]

CASES: list[Case] = [
    # number, wrong model, facts, what is said, right model, facts
    ("F01", "providers: [CUDA]", CPU_ONLY, "unavailable-provider", "providers: [CPU]", CPU_ONLY),
    ("F02", "providers: [cudda]", HERE, "unknown-provider", "providers: [CUDA, CPU]", HERE),
    ("F02", "providers: [CUDAExecutionProvder]", HERE, "unknown-provider", "providers: [CUDAExecutionProvider]", HERE),
    (
        "F03",
        "providers: [CUDA]",
        {**HERE, "runtime_packages": ["onnxruntime", "onnxruntime-gpu"]},
        "several-runtimes",
        "providers: [CUDA]",
        {**HERE, "runtime_packages": ["onnxruntime-gpu"]},
    ),
    (
        "F04",
        "providers: [CUDA, CPU]",
        {**CPU_ONLY, "plugin_problems": {"CUDAExecutionProvider": "libcublasLt.so.13: cannot open shared object file."}},
        "unavailable-provider",
        "providers: [CUDA, CPU]",
        HERE,
    ),
    ("F05", "providers: [CPU, OpenVINO]", HERE, "unreachable-provider", "providers: [OpenVINO, CPU]", HERE),
    (
        "F06",
        "providers: [QNN, CUDA, CPU]",
        {**PLUGINS, "providers": ["CUDAExecutionProvider", "CPUExecutionProvider"]},
        "mixed-provider-routes",
        "providers: [QNN, CPU]",
        PLUGINS,
    ),
    ("F09", "providers: [[CUDA, {device_id: 0}]]", HERE, "wrong-type", "providers: [{provider: CUDA, options: {device_id: 0}}]", HERE),
    ("F09", "providers: CPUExecutionProvider", HERE, "undefined-provider-chain", "providers: [CPUExecutionProvider]", HERE),
    ("F09", "providers: [CUDA, CUDA, CPU]", HERE, "repeated-provider", "providers: [CUDA, CPU]", HERE),
    ("F10", "providers: [OpenVINO, DirectML, CPU]", HERE, "incompatible-providers", "sessions: [{name: a, providers: [OpenVINO, CPU]}, {name: b, providers: [DirectML, CPU]}]", HERE),
    ("F12", "providers: [DirectML, CPU], session: {execution_mode: parallel}", HERE, "ignored-option", "providers: [DirectML, CPU], session: {execution_mode: sequential}", HERE),
    ("F12", "providers: [DirectML, CPU], session: {enable_mem_pattern: true}", HERE, "ignored-option", "providers: [DirectML, CPU], session: {enable_mem_pattern: false}", HERE),
    ("F13", "providers: [Xnnpack, CPU], session: {intra_op_num_threads: 4}", HERE, "ignored-option", "providers: [{provider: Xnnpack, options: {intra_op_num_threads: 4}}, CPU], session: {intra_op_num_threads: 1}", HERE),
    ("F15", "providers: [QNN, CPU]", DYNAMIC, "dynamic-shape", "providers: [QNN, CPU]", HERE),
    ("F17", "providers: [{provider: QNN, options: {backend_type: htp, backend_path: libQnnHtp.so}}]", HERE, "contradictory-option", "providers: [{provider: QNN, options: {backend_path: libQnnHtp.so}}]", HERE),
    ("F17", "providers: [{provider: QNN, options: {backend_type: npu}}]", HERE, "value-not-allowed", "providers: [{provider: QNN, options: {backend_type: htp}}]", HERE),
    ("F17", "providers: [{provider: QNN, options: {htp_performance_mode: turbo}}]", HERE, "value-not-allowed", "providers: [{provider: QNN, options: {htp_performance_mode: burst}}]", HERE),
    ("F17", "providers: [{provider: QNN, options: {vtcm_mb: -4}}]", HERE, "value-not-allowed", "providers: [{provider: QNN, options: {vtcm_mb: 4}}]", HERE),
    ("F17", "providers: [{provider: QNN, options: {soc_model: SM8550}}]", HERE, "wrong-type", "providers: [{provider: QNN, options: {soc_model: 43}}]", HERE),
    ("F19", "providers: [{provider: OpenVINO, options: {precision: FP16}}, CPU]", PLUGINS, "ignored-provider-option", "providers: [{provider: OpenVINO, options: {precision: FP16}}, CPU]", HERE),
    ("F19", "providers: [{provider: OpenVINO, options: {num_of_thread: 2}}, CPU]", HERE, "unknown-key", "providers: [{provider: OpenVINO, options: {num_of_threads: 2}}, CPU]", HERE),
    ("F21", "providers: [{provider: OpenVINO, device: NPU}, CPU]", {**PLUGINS, "models": {}, "inputs": {}}, "dynamic-shape", "providers: [{provider: OpenVINO, device: NPU}, CPU]", PLUGINS),
    ("F21", "providers: [{provider: OpenVINO, options: {reshape_input: 'bogus[1,3]'}}, CPU]", HERE, "shape-option-mismatch", "providers: [{provider: OpenVINO, options: {reshape_input: 'image[32,1,8,8]'}}, CPU]", HERE),
    ("F21", "providers: [{provider: OpenVINO, options: {reshape_input: 'image'}}, CPU]", HERE, "shape-option-mismatch", "providers: [{provider: OpenVINO, options: {reshape_input: 'image[1..32,1,8,8]'}}, CPU]", HERE),
    ("F22", "providers: [{provider: VitisAI, options: {config_file: vaip.json}}, CPU]", {**HERE, "path_problems": [["file", "vaip.json"]]}, "unusable-option-path", "providers: [{provider: VitisAI, options: {config_file: vaip.json}}, CPU]", HERE),
    ("F22", "sessions: [{name: a, providers: [VitisAI], count: 2}], session: {intra_op_num_threads: 1}", HERE, "crowded-device", "sessions: [{name: a, providers: [VitisAI]}]", HERE),
    ("F23", "providers: [TensorRT, CUDA, CPU]", nodes(unranked=["717"]), "unknown-rank", "providers: [TensorRT, CUDA, CPU]", HERE),
    ("F24", "providers: [{provider: TensorRT, options: {trt_profile_min_shapes: 'image:1x1x8x8'}}, CPU]", DYNAMIC, "contradictory-option", "providers: [{provider: TensorRT, options: {trt_profile_min_shapes: 'image:1x1x8x8', trt_profile_opt_shapes: 'image:8x1x8x8', trt_profile_max_shapes: 'image:32x1x8x8'}}, CPU]", DYNAMIC),
    ("F24", "providers: [{provider: TensorRT, options: {trt_profile_min_shapes: 'image:1x1x8x8', trt_profile_opt_shapes: 'image:8x1x8x8', trt_profile_max_shapes: 'image:16x1x8x8'}}, CPU]", DYNAMIC, "shape-option-mismatch", "providers: [TensorRT, CPU]", DYNAMIC),
    ("F26", "providers: [{provider: CUDA, options: {device_id: -1}}]", HERE, "value-not-allowed", "providers: [{provider: CUDA, options: {device_id: 0}}]", HERE),
    ("F26", "providers: [{provider: OpenVINO, device: 3}, CPU]", PLUGINS, "unknown-device", "providers: [{provider: OpenVINO, device: 1}, CPU]", PLUGINS),
    ("F27", "providers: [{provider: CUDA, options: {cuda_mem_limit: 2147483648}}]", HERE, "unknown-key", "providers: [{provider: CUDA, options: {gpu_mem_limit: 2GiB}}]", HERE),
    ("F30", "providers: [QNN, CPU], session: {config: {session.disable_cpu_ep_fallback: '1'}}", HERE, "contradictory-option", "providers: [QNN], session: {config: {session.disable_cpu_ep_fallback: '1'}}", HERE),
    ("F31", "session: {config: {session.disable_cpu_fallback: 1}}", HERE, "unknown-key", "session: {config: {session.disable_cpu_ep_fallback: 0}}", HERE),
    ("F31", "session: {config: {session.intra_op.allow_spinning: 'True'}}", HERE, "value-not-allowed", "session: {config: {session.intra_op.allow_spinning: true}}", HERE),
    ("F31", "session: {config: {session.load_model_format: onxx}}", HERE, "value-not-allowed", "session: {config: {session.load_model_format: ORT}}", HERE),
    ("F31", "run: {config: {memory.shrink: cpu}}", HERE, "unknown-key", "run: {config: {memory.enable_memory_arena_shrinkage: cpu}}", HERE),
    ("F33", "session: {intra_op_num_threads: 4}", {**HERE, "machine": {"cores": 2}}, "too-many-threads", "session: {intra_op_num_threads: 2}", {**HERE, "machine": {"cores": 2}}),
    ("F34", "memory: lean", {**HERE, "machine": {"cores": 64, "cpu_quota": 2}}, "too-many-threads", "session: {intra_op_num_threads: 2}", {**HERE, "machine": {"cores": 64, "cpu_quota": 2}}),
    ("F37", "sessions: [{name: a, providers: [CPU], count: 2}]", HERE, "spinning-sessions", "sessions: [{name: a, providers: [CPU], count: 2}], session: {config: {session.intra_op.allow_spinning: '0'}}", HERE),
    ("F38", "session: {free_dimension_overrides: {batch_size: 32}}", DYNAMIC, "unknown-dimension", "session: {free_dimension_overrides: {batch: 32}}, inputs: {}", {**DYNAMIC, "inputs": FULL}),
    ("F38", "session: {free_dimension_overrides: {batch: 0}}", DYNAMIC, "value-not-allowed", "session: {intra_op_num_threads: 1}", DYNAMIC),
    ("F38", "session: {free_dimension_overrides: {batch: 1}}", {**DYNAMIC, "batch": 4}, "fixed-batch-mismatch", "session: {free_dimension_overrides: {batch: 4}}", {**DYNAMIC, "batch": 4, "inputs": FULL}),
    ("F39", "providers: [OpenVINO, CPU]", nodes("com.microsoft.nchwc.Conv 1"), "optimized-elsewhere", "providers: [OpenVINO, CPU]", nodes("ai.onnx.Conv 11")),
    ("F40", "session: {optimized_model_filepath: gone/m.onnx}", {**HERE, "path_problems": [["new-file", "gone/m.onnx"]]}, "unusable-option-path", "session: {optimized_model_filepath: m.onnx}", HERE),
    ("F40", "providers: [OpenVINO, CPU], session: {optimized_model_filepath: m.onnx}", HERE, "contradictory-option", "providers: [OpenVINO, CPU], cache: true", HERE),
    ("F40", "session: {enable_profiling: true, profile_file_prefix: gone/p}", {**HERE, "path_problems": [["new-file", "gone/p"]]}, "unusable-option-path", "session: {enable_profiling: true, profile_file_prefix: p}", HERE),
    ("F41", "session: {enable_cpu_mem_arena: false}, run: {config: {memory.enable_memory_arena_shrinkage: 'cpu:0'}}", HERE, "contradictory-option", "run: {config: {memory.enable_memory_arena_shrinkage: 'cpu:0'}}", HERE),
    ("F41", "run: {config: {memory.enable_memory_arena_shrinkage: 'gpu:0'}}", HERE, "contradictory-option", "providers: [CUDA, CPU], run: {config: {memory.enable_memory_arena_shrinkage: 'gpu:0'}}", HERE),
]  # fmt: skip


def said(model: str, facts: dict[str, Any]) -> dict[str, str]:
    """Return what is said of a manifest: rule and detail."""
    job = f"batch: {{size: {facts['batch']}}}," if "batch" in facts else ""
    text = MANIFEST.replace("MODEL", model).replace("JOB", job)
    document, problems = parse_document(text.encode(), "m.yaml")
    assert document is not None
    found = problems + check_document(document)
    if not found:
        spec = make_spec(text)
        found = check_rules(load_rules(SPEC_RULES), spec, spec)
        found += check_rules(load_rules(DEPLOYMENT_RULES), make_deployment(spec, facts), spec)
    assert all(one.span.line >= 1 for one in found)
    return {one.rule: one.detail for one in found}


@pytest.mark.parametrize(
    ("number", "wrong", "facts", "rule", "right", "right_facts"),
    CASES,
    ids=[f"{case[0]}-{case[3]}-{index}" for index, case in enumerate(CASES)],
)
def test_it_is_said_when_wrong_and_not_when_right(
    number: str, wrong: str, facts: dict[str, Any], rule: str, right: str, right_facts: dict[str, Any]
) -> None:
    found = said(wrong, facts)
    assert rule in found, (number, found)
    assert len(found[rule]) > 40
    assert not said(right, right_facts)


def test_every_number_is_tried_here_or_for_real() -> None:
    """Those that are missing below need a session: F08 F16 (tests/runtime/test_plugins.py). F42 is about memory caps."""
    numbers = "01 02 03 04 05 06 09 10 12 13 15 17 19 21 22 23 24 26 27 30 31 33 34 37 38 39 40 41"
    assert {case[0] for case in CASES} == {f"F{number}" for number in numbers.split()}


def test_sizes_and_booleans_become_what_the_provider_parses() -> None:
    """F27 and F31, the other half: what is written naturally is handed over as it is compared."""
    assert serialise(find_provider("CUDA"), {"gpu_mem_limit": "2GiB"}) == {"gpu_mem_limit": "2147483648"}
    assert serialise(None, {"session.intra_op.allow_spinning": True}) == {"session.intra_op.allow_spinning": "1"}


@pytest.mark.parametrize(
    ("provider", "comes"),
    [
        ("QNN", "comes as a plugin beside onnxruntime, with onnxruntime-qnn; list"),
        ("OpenVINO", "comes with onnxruntime-openvino or, as a plugin, with onnxruntime-ep-openvino; list"),
        ("CUDA", "comes with onnxruntime-gpu; list"),
    ],
)
def test_each_package_that_carries_a_provider_is_named_once(provider: str, comes: str) -> None:
    assert comes in said(f"providers: [{provider}]", CPU_ONLY)["unavailable-provider"]
