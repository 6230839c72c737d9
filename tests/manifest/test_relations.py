"""Every relation between options is tripped by one session and not by the same session written right."""

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from support.specs import make_spec

from ortdeploy.manifest.relations import IGNORED, REFUSED, find_relations
from ortdeploy.providers.catalogue import PROVIDERS
from ortdeploy.providers.options import options_schema
from ortdeploy.schemas import schema_text

DEFINITIONS = json.loads(schema_text("deployment"))["$defs"]
OWNERS = {
    "model": DEFINITIONS["model"],
    "session": DEFINITIONS["session"],
    "run": DEFINITIONS["run"],
    **{one.short: options_schema(one) for one in PROVIDERS},
}
RELATIONS = [(owner, one) for owner, schema in OWNERS.items() for one in schema.get("x-relations", ())]


def session(options: str, chain: str = "CPU") -> str:
    return f"session: {{{options}}}, providers: [{chain}]"


def config(entries: str, chain: str = "CPU") -> str:
    return session(f"config: {{{entries}}}", chain)


def run(entries: str, chain: str = "CPU", more: str = "") -> str:
    return f"run: {{config: {{{entries}}}}}, providers: [{chain}]{more}"


def options(provider: str, entries: str, more: str = "") -> str:
    return f"providers: [{{provider: {provider}, options: {{{entries}}}}}, CPU]{more}"


FLAGS = "flags: COREML_FLAG_USE_CPU_ONLY|COREML_FLAG_CREATE_MLPROGRAM"
SPIN = "allow_spinning: false"
ENABLE = "ep.context_enable: true"
NO_ARENA = ", session: {enable_cpu_mem_arena: false}"
CONTEXT = f", session: {{config: {{{ENABLE}}}}}"
EMBED = ", session: {config: {ep.context_enable: true, ep.context_embed_mode: true}}"
TRT_MIN, TRT_OPT, TRT_MAX = (f"trt_profile_{end}_shapes: 'x:1x3'" for end in ("min", "opt", "max"))
NV_MIN, NV_OPT, NV_MAX = (f"nv_profile_{end}_shapes: 'x:1x3'" for end in ("min", "opt", "max"))
SHRINK = "memory.enable_memory_arena_shrinkage"

EXTERNAL = f"external_data: {{m.data: '{'0' * 64}'}}"

CASES = [
    (EXTERNAL, f"path: https://models.example/m.onnx, {EXTERNAL}"),
    ("cache: true, providers: [CUDA, CPU]", "cache: true, providers: [QNN, CUDA, CPU]"),
    ("cache: true, " + session("optimized_model_filepath: o.onnx"), session("optimized_model_filepath: o.onnx")),
    ("cache: true, " + config(ENABLE, "QNN"), config(ENABLE, "QNN")),
    (session("inter_op_num_threads: 4"), session("inter_op_num_threads: 4, execution_mode: parallel")),
    (session("enable_mem_pattern: true, execution_mode: parallel"), session("enable_mem_pattern: true")),
    (session("profile_file_prefix: p"), session("profile_file_prefix: p, enable_profiling: true")),
    (session("log_verbosity_level: 1"), session("log_verbosity_level: 1, log_severity_level: 0")),
    (session("use_per_session_threads: false"), session("use_per_session_threads: true")),
    (session("optimized_model_filepath: o.onnx", "QNN, CPU"), session("optimized_model_filepath: o.onnx", "CUDA, CPU")),
    (config("session.disable_cpu_ep_fallback: '1'", "QNN, CPU"), config("session.disable_cpu_ep_fallback: 1", "QNN")),
    (config("session.disable_cpu_ep_fallback: true"), config("session.disable_cpu_ep_fallback: false")),
    (
        config("session.layer_assignment_settings: a, session.name_based_layer_assignment: b"),
        config("session.layer_assignment_settings: a"),
    ),
    (
        config("session.use_ort_model_bytes_for_initializers: true"),
        config("session.use_ort_model_bytes_for_initializers: true, session.use_ort_model_bytes_directly: true"),
    ),
    (
        session("enable_mem_pattern: true, config: {session.collect_node_memory_stats_to_file: s.csv}"),
        session("enable_mem_pattern: false, config: {session.collect_node_memory_stats_to_file: s.csv}"),
    ),
    (
        config(f"session.intra_op.spin_duration_us: 9, session.intra_op.{SPIN}"),
        config("session.intra_op.spin_duration_us: 9"),
    ),
    (
        config(f"session.inter_op.spin_duration_us: 9, session.inter_op.{SPIN}"),
        config(f"session.inter_op.spin_duration_us: 9, session.intra_op.{SPIN}"),
    ),
    (
        config("optimization.disable_specified_optimizers: 'A,B'"),
        config("optimization.disable_specified_optimizers: 'A;B'"),
    ),
    (config("session.disable_model_compile: true"), config("session.disable_model_compile: true", "QNN, CPU")),
    (config(ENABLE), config(ENABLE, "OpenVINO, CPU")),
    (config("ep.context_file_path: a.onnx"), config(f"ep.context_file_path: a.onnx, {ENABLE}", "QNN")),
    (config("ep.context_embed_mode: true"), config(f"ep.context_embed_mode: true, {ENABLE}", "QNN")),
    (config("ep.context_node_name_prefix: a"), config(f"ep.context_node_name_prefix: a, {ENABLE}", "QNN")),
    (
        config("ep.context_model_external_initializers_file_name: a"),
        config(f"ep.context_model_external_initializers_file_name: a, {ENABLE}", "QNN"),
    ),
    (
        config(f"ep.context_file_path: a.b/c, {ENABLE}", "QNN"),
        config(f"ep.context_file_path: a/c_ctx.onnx, {ENABLE}", "QNN"),
    ),
    (config("ep.enable_weightless: true", "QNN, CPU"), config("ep.enable_weightless: true", "CoreML, CPU")),
    (
        config(f"ep.share_ep_contexts: true, ep.context_embed_mode: true, {ENABLE}", "QNN"),
        config(f"ep.share_ep_contexts: true, ep.context_embed_mode: false, {ENABLE}", "QNN"),
    ),
    (config("ep.cuda.fpa_intb_gemm: true"), config("ep.cuda.fpa_intb_gemm: true", "CUDA, CPU")),
    (config("ep.cuda.fpa_intb_profile_m: '1,2'"), config("ep.cuda.fpa_intb_profile_m: '1,2'", "CUDA")),
    (
        config("ep.cuda.gqa_workspace_max_total_sequence_length: 9"),
        config("ep.cuda.gqa_workspace_max_total_sequence_length: 9", "CUDA, CPU"),
    ),
    (
        config("session.resource_cuda_partitioning_settings: a"),
        config("session.resource_cuda_partitioning_settings: a", "CUDA, CPU"),
    ),
    (config("ep.nnapi.partitioning_stop_ops: A"), config("session.intra_op.allow_spinning: false")),
    (config("ep.dml.disable_graph_fusion: true"), config("ep.dml.disable_graph_fusion: true", "Dml, CPU")),
    (config("ep.dml.disable_memory_arena: true"), config("ep.dml.disable_memory_arena: true", "Dml, CPU")),
    (config("ep.dml.enable_cpu_sync_spinning: true"), config("ep.dml.enable_cpu_sync_spinning: true", "DirectML")),
    (
        config("ep.dml.enable_graph_serialization: 'true'"),
        config("ep.dml.enable_graph_serialization: 'true'", "DirectML, CPU"),
    ),
    (
        config("ep.dml.enable_graph_capture: true", "Dml, CPU"),
        config("ep.dml.enable_graph_capture: false", "Dml, CPU"),
    ),
    (run(f"{SHRINK}: cpu:0", more=NO_ARENA), run(f"{SHRINK}: cpu:0")),
    (run(f"{SHRINK}: cpu:0;gpu:0"), run(f"{SHRINK}: cpu:0;gpu:0", "CUDA, CPU")),
    (run(f"{SHRINK}: cpu:1"), run(f"{SHRINK}: cpu")),
    (run(f"{SHRINK}: gpu:1", "CUDA, CPU"), run(f"{SHRINK}: gpu:0", "CUDA, CPU")),
    (
        run(f"{SHRINK}: gpu:0", "{provider: CUDA, options: {device_id: 1}}, CPU"),
        run(f"{SHRINK}: gpu:1", "{provider: CUDA, options: {device_id: 1}}, CPU"),
    ),
    (run(f"{SHRINK}: gpu:0;cpu:0", "CUDA, CPU", NO_ARENA), run(f"{SHRINK}: gpu:0", "CUDA, CPU", NO_ARENA)),
    *(
        (run(entry), run(entry, "QNN, CPU"))
        for entry in (
            "qnn.htp_perf_mode: burst",
            "qnn.htp_perf_mode_post_run: burst",
            "qnn.lora_config: a",
            "qnn.rpc_control_latency: 9",
            "kvcache_rewind: 9",
        )
    ),
    (run("nv_profile_index: 1"), run("nv_profile_index: 1", "NvTensorRTRTX, CPU")),
    (run("gpu_graph_id: 1", "CUDA, CPU"), run(f"{SHRINK}: gpu:0", "CUDA, CPU")),
    (run("use_azure: true"), run("use_azure: true", "Azure")),
    (run("azure.auth_key: a"), run("azure.auth_key: a", "Azure")),
    ("run: {log_verbosity_level: 1}", "run: {log_verbosity_level: 1, log_severity_level: 0}"),
    (options("QNN", "backend_type: htp, backend_path: a.so"), options("QNN", "backend_type: htp")),
    (options("QNN", "backend_type: saver"), options("QNN", "backend_type: saver", ", probe: false")),
    (
        options("QNN", "enable_htp_fp16_precision: true"),
        options("QNN", "enable_htp_fp16_precision: true, soc_model: 69"),
    ),
    (options("QNN", "htp_bf16_enable: true, soc_model: 69"), options("QNN", "htp_bf16_enable: true, soc_model: 88")),
    (options("QNN", "htp_bf16_enable: true"), options("QNN", "htp_bf16_enable: false")),
    (options("QNN", "enable_htp_prepare_only: true"), options("QNN", "enable_htp_prepare_only: true", CONTEXT)),
    (
        options("QNN", "profiling_level: basic"),
        options("QNN", "profiling_level: basic, profiling_file_path: p.csv"),
    ),
    (
        options("QNN", "profiling_file_path: p.csv"),
        options("QNN", "profiling_level: detailed, profiling_file_path: p.csv"),
    ),
    (
        options("QNN", "enable_vtcm_backup_buffer_sharing: true", EMBED),
        options("QNN", "enable_vtcm_backup_buffer_sharing: true", CONTEXT),
    ),
    (options("QNN", "dump_qnn_ir_dlc_dir: d"), options("QNN", "dump_qnn_ir_dlc_dir: d, dump_qnn_ir_dlc: true")),
    (options("QNN", "json_qnn_graph_dir: d"), options("QNN", "json_qnn_graph_dir: d, dump_json_qnn_graph: true")),
    *(
        (options("TensorRT", one), options("TensorRT", f"{TRT_MIN}, {TRT_OPT}, {TRT_MAX}"))
        for one in (TRT_MIN, TRT_OPT)
    ),
    (options("TensorRT", f"{TRT_MAX}, {TRT_OPT}"), options("TensorRT", f"{TRT_MIN}, {TRT_OPT}, {TRT_MAX}")),
    *((options("NvTensorRTRTX", n), options("NvTensorRTRTX", "device_id: 0")) for n in (NV_MIN, NV_OPT, NV_MAX)),
    (options("TensorRT", "trt_cuda_graph_enable: true"), options("TensorRT", "trt_cuda_graph_enable: false")),
    (
        options("TensorRT", "trt_engine_cache_path: c"),
        options("TensorRT", "trt_engine_cache_path: c, trt_engine_cache_enable: true"),
    ),
    (
        options("TensorRT", "trt_engine_cache_prefix: c"),
        options("TensorRT", "trt_engine_cache_prefix: c, trt_engine_cache_enable: true"),
    ),
    (
        options("TensorRT", "trt_timing_cache_path: c"),
        options("TensorRT", "trt_timing_cache_path: c, trt_timing_cache_enable: true"),
    ),
    (
        options("TensorRT", "trt_int8_calibration_table_name: c"),
        options("TensorRT", "trt_int8_calibration_table_name: c, trt_int8_enable: true"),
    ),
    (options("TensorRT", "trt_dla_core: 1"), options("TensorRT", "trt_dla_core: 1, trt_dla_enable: true")),
    (
        options("TensorRT", "trt_engine_decryption_lib_path: l.so"),
        options("TensorRT", "trt_engine_decryption_lib_path: l.so, trt_engine_decryption_enable: true"),
    ),
    (options("NvTensorRTRTX", "enable_cuda_graph: true"), options("NvTensorRTRTX", "enable_cuda_graph: false")),
    (options("CUDA", "enable_cuda_graph: true"), options("CUDA", "enable_cuda_graph: false")),
    (
        options("CUDA", "tunable_op_tuning_enable: true"),
        options("CUDA", "tunable_op_tuning_enable: true, tunable_op_enable: true"),
    ),
    (
        options("CUDA", "tunable_op_max_tuning_duration_ms: 9"),
        options(
            "CUDA", "tunable_op_max_tuning_duration_ms: 9, tunable_op_tuning_enable: true, tunable_op_enable: true"
        ),
    ),
    (options("MIGraphX", "migraphx_hip_graph_enable: true"), options("MIGraphX", "migraphx_hip_graph_enable: false")),
    (
        options("MIGraphX", "migraphx_int8_calibration_table_name: c"),
        options("MIGraphX", "migraphx_int8_calibration_table_name: c, migraphx_int8_enable: true"),
    ),
    (options("WebGpu", "enableGraphCapture: true"), options("WebGpu", "enableGraphCapture: false")),
    *(
        (session(entry, f"{provider}, CPU"), session(entry, "CPU"))
        for provider in ("WebGpu", "DirectML")
        for entry in ("execution_mode: parallel", "enable_mem_pattern: true")
    ),
    (session("intra_op_num_threads: 4", "Xnnpack, CPU"), session("intra_op_num_threads: 1", "Xnnpack, CPU")),
    (
        options("CoreML", f"{FLAGS}, AllowLowPrecisionAccumulationOnGPU: true"),
        options("CoreML", "AllowLowPrecisionAccumulationOnGPU: true"),
    ),
    (options("CoreML", f"{FLAGS}, EnableOnSubgraphs: true"), options("CoreML", "EnableOnSubgraphs: true")),
    (options("CoreML", f"{FLAGS}, MLComputeUnits: CPUOnly"), options("CoreML", "MLComputeUnits: CPUOnly")),
    (options("CoreML", f"{FLAGS}, ModelCacheDirectory: cache"), options("CoreML", "ModelCacheDirectory: cache")),
    (options("CoreML", f"{FLAGS}, ModelFormat: MLProgram"), options("CoreML", "ModelFormat: MLProgram")),
    (options("CoreML", f"{FLAGS}, ProfileComputePlan: false"), options("CoreML", "ProfileComputePlan: false")),
    (
        options("CoreML", f"{FLAGS}, RequireStaticInputShapes: true"),
        options("CoreML", "RequireStaticInputShapes: true"),
    ),
    (
        options("CoreML", f"{FLAGS}, SpecializationStrategy: FastPrediction"),
        options("CoreML", "SpecializationStrategy: FastPrediction"),
    ),
    (
        options("CoreML", "ProfileComputePlan: true"),
        options("CoreML", "ProfileComputePlan: true, ModelFormat: MLProgram"),
    ),
]
"""A model's text that trips a relation, and a near miss."""


def found(model: str) -> set[tuple[tuple[Any, ...], str, str]]:
    """Return option, effect and detail of what is said of a model."""
    written = model if model.startswith("path:") else f"path: m.onnx, {model}"
    (model_spec,) = (spec := make_spec(f"version: 1\nmodels:\n  m: {{{written}}}\n")).models
    return {
        (at[at.index("options") if "options" in at else 2 :], effect, detail)
        for effect in (REFUSED, IGNORED)
        for at, detail in find_relations(spec, model_spec, effect)
    }


@pytest.mark.parametrize(("wrong", "right"), CASES)
def test_a_relation_is_tripped_and_its_near_miss_is_not(wrong: str, right: str) -> None:
    assert found(wrong)
    assert not found(right)


def test_every_relation_is_tripped_by_a_case() -> None:
    tripped = {one for wrong, _ in CASES for one in found(wrong)}
    assert tripped == {(tuple(one["option"]), one["effect"], one["detail"]) for _, one in RELATIONS}


@pytest.mark.parametrize(("owner", "relation"), RELATIONS, ids=lambda value: str(value)[:60])
def test_a_relation_names_an_option_that_there_is_and_who_says_so(owner: str, relation: dict[str, Any]) -> None:
    Draft202012Validator.check_schema(relation["when"])
    assert relation["detail"].endswith(".")
    assert relation["x-source"]
    kind, *rest = relation["option"] if len(relation["option"]) > 1 else ["model", *relation["option"]]
    known: Any = OWNERS[owner] if kind == "options" else DEFINITIONS[kind]
    if rest[0] == "config":
        known, rest = DEFINITIONS[f"{kind}Config"], rest[1:]
    assert rest[0] in known["properties"]
    assert len(rest) == 1
