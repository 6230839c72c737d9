"""What the config of ONNX Runtime GenAI calls providers and session options."""

PROVIDERS = {
    "CUDAExecutionProvider": "cuda",
    "DmlExecutionProvider": "DML",
    "NvTensorRTRTXExecutionProvider": "NvTensorRtRtx",
    "OpenVINOExecutionProvider": "OpenVINO",
    "QNNExecutionProvider": "QNN",
    "VitisAIExecutionProvider": "VitisAI",
    "WebGpuExecutionProvider": "WebGPU",
}
"""Its names of providers beside the CPU's, which it takes if there is no other."""

LEVELS = {
    "disable": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
"""Its names of levels of graph optimization."""

OPTIONS = frozenset({
    "config",
    "enable_cpu_mem_arena",
    "enable_mem_pattern",
    "graph_optimization_level",
    "inter_op_num_threads",
    "intra_op_num_threads",
    "log_severity_level",
    "log_verbosity_level",
    "logid",
})  # fmt: skip
"""The session options that it can say."""
