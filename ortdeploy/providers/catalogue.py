"""The execution providers of ONNX Runtime's Python packages, by the names users write.

Sources: `onnxruntime.get_all_providers()` of 1.31.1 and the release notes and wheels of earlier versions; memory from
each provider's OrtDevice in the source of 1.31.
"""

from msgspec import Struct

SUFFIX = "ExecutionProvider"


class Plugin(Struct, frozen=True):
    """A package that carries a provider as a plugin: what to import, and what to install.

    `hardware`: whose devices it takes alone, if it says nothing of others.
    """

    module: str
    package: str
    hardware: str | None = None


class Provider(Struct, frozen=True, kw_only=True):
    """One execution provider: its full name, and what carries it.

    - `memory`: the device memory that its tensors live in; None if that is the CPU's. Providers that share a memory can
      hand tensors to each other.
    - `claims_nodes`: False if it never takes any.
    - `compiles`: it takes whole subgraphs and compiles them, instead of having a kernel for each node.
    - `writes_context`: it writes what it compiled as a model with EPContext nodes.
    - `static_shapes`: it takes no node of an unknown shape. `needs_ranks`: it fails if the rank of a value is unknown.
    - `sessions_per_device`: how many sessions can share its device; None for any number.
    - `concurrent_runs`: False if a session must not, or does not, run several batches at once.
    - `oldest_opset`: the first operator set of ai.onnx whose layout ONNX Runtime can turn into the provider's own
      (layout_transformation.cc). Of older graphs it gets no node.
    - `shares_cpu_memory_on`: the device on which it allocates a part of the CPU's memory that providers with
      `mistakes_shared_memory` take for their own (tests/runtime/test_incompatible_pairs.py).
    - `devices`: the device nodes that it opens, as DeviceAllow= of systemd names them; None if they are not known.
    """

    name: str
    package: str
    plugin: Plugin | None = None
    memory: str | None = None
    claims_nodes: bool = True
    compiles: bool = False
    writes_context: bool = False
    static_shapes: bool = False
    sessions_per_device: int | None = None
    concurrent_runs: bool = True
    needs_ranks: bool = False
    oldest_opset: int = 1
    shares_cpu_memory_on: str | None = None
    mistakes_shared_memory: bool = False
    devices: tuple[str, ...] | None = None

    @property
    def short(self) -> str:
        """`CUDA` for `CUDAExecutionProvider`."""
        return self.name.removesuffix(SUFFIX)


NVIDIA = "NVIDIA GPU"
COUNTED = 2**31 - 1
"""The memory of providers whose kernels count with 32 bits, and the most elements that they count."""

_NVIDIA = ("char-drm", "char-nvhost*", "char-nvidia*", "/dev/nvmap")
"""Those of graphics cards, and of Jetson's modules."""

PROVIDERS: tuple[Provider, ...] = (
    Provider(name="ACLExecutionProvider", devices=(), package="a source build with --use_acl"),
    Provider(name="AzureExecutionProvider", devices=(), package="onnxruntime", claims_nodes=False),
    Provider(name="CANNExecutionProvider", package="onnxruntime-cann", memory="Ascend NPU"),
    Provider(name="CPUExecutionProvider", devices=(), package="onnxruntime"),
    Provider(name="CUDAExecutionProvider", devices=_NVIDIA, package="onnxruntime-gpu", memory=NVIDIA),
    Provider(name="CoreMLExecutionProvider", package="onnxruntime on macOS", compiles=True),
    Provider(name="DmlExecutionProvider", package="onnxruntime-directml", memory="DirectML", concurrent_runs=False),
    Provider(name="DnnlExecutionProvider", devices=(), package="a source build with --use_dnnl"),
    Provider(
        name="MIGraphXExecutionProvider",
        devices=("char-drm", "char-kfd"),
        package="onnxruntime-migraphx",
        memory="AMD GPU",
        compiles=True,
        plugin=Plugin("onnxruntime_ep_migraphx", "onnxruntime-ep-migraphx"),
    ),
    Provider(
        name="NvTensorRTRTXExecutionProvider",
        devices=_NVIDIA,
        package="a source build with --use_nv_tensorrt_rtx",
        memory=NVIDIA,
        compiles=True,
        writes_context=True,
        plugin=Plugin(
            "onnxruntime_ep_nv_tensorrt_rtx",
            "onnxruntime-ep-nv-tensorrt-rtx",
            hardware="NVIDIA RTX (sm86, sm89, sm120)",
        ),
    ),
    Provider(
        name="OpenVINOExecutionProvider",
        devices=("char-accel", "char-drm"),
        package="onnxruntime-openvino",
        compiles=True,
        needs_ranks=True,
        writes_context=True,
        plugin=Plugin("onnxruntime_ep_openvino", "onnxruntime-ep-openvino", hardware="Intel"),
        shares_cpu_memory_on="CPU",
    ),
    Provider(
        name="QNNExecutionProvider",
        devices=("/dev/adsprpc-smd", "/dev/fastrpc-adsp", "/dev/fastrpc-cdsp"),
        package="onnxruntime-qnn",
        compiles=True,
        writes_context=True,
        static_shapes=True,
        plugin=Plugin("onnxruntime_qnn", "onnxruntime-qnn"),
        mistakes_shared_memory=True,
    ),
    Provider(name="RknpuExecutionProvider", package="a source build with --use_rknpu", compiles=True),
    Provider(
        name="TensorrtExecutionProvider",
        devices=_NVIDIA,
        package="onnxruntime-gpu",
        compiles=True,
        needs_ranks=True,
        memory=NVIDIA,
    ),
    Provider(
        name="VSINPUExecutionProvider", package="a source build with --use_vsinpu", compiles=True, static_shapes=True
    ),
    Provider(
        name="VitisAIExecutionProvider",
        package="onnxruntime-vitisai",
        compiles=True,
        writes_context=True,
        sessions_per_device=1,
    ),
    Provider(
        name="WebGpuExecutionProvider",
        devices=("char-drm", *_NVIDIA),
        package="onnxruntime-webgpu",
        memory="WebGPU",
        oldest_opset=7,
        concurrent_runs=False,
        plugin=Plugin("onnxruntime_ep_webgpu", "onnxruntime-ep-webgpu"),
        mistakes_shared_memory=True,
    ),
    Provider(
        name="XnnpackExecutionProvider",
        devices=(),
        package="a source build with --use_xnnpack",
        oldest_opset=7,
        concurrent_runs=False,
    ),
)

CPU = "CPUExecutionProvider"

_OTHER_NAMES = {
    "Dml": ("DirectML",),
    "Dnnl": ("MKLDNN", "oneDNN"),
    "NvTensorRTRTX": ("NvTRTRTX", "TensorRTRTX", "TRTRTX"),
    "Tensorrt": ("TRT",),
    "VitisAI": ("Vitis",),
}
"""What providers are called elsewhere, beside their own names."""


def folded(name: str) -> str:
    """Return a name without what people write differently: case, dashes, and ExecutionProvider or EP at its end."""
    folded = "".join(sign for sign in name.casefold() if sign not in " -_")
    for suffix in (SUFFIX.casefold(), "ep"):
        if folded.endswith(suffix) and folded != suffix:
            return folded.removesuffix(suffix)
    return folded


_BY_NAME = {
    folded(spelling): provider
    for provider in PROVIDERS
    for spelling in (provider.name, *_OTHER_NAMES.get(provider.short, ()))
}


def find_provider(name: str) -> Provider | None:
    """Return the provider of a name as people write it: short or full, in any case, or a common other name.

    `schemas/deployment.schema.json` knows the same spellings by a pattern for each.
    """
    return _BY_NAME.get(folded(name))


_OF_HARDWARE = {
    "gpu": "CUDA for NVIDIA, MIGraphX for AMD, OpenVINO for Intel, CoreML for Apple, or WebGpu for any",
    "npu": "QNN for Qualcomm, OpenVINO for Intel, VitisAI for AMD, CANN for Ascend, CoreML for Apple",
    "nvidia": "CUDA, or Tensorrt, which compiles the model",
    "amd": "MIGraphX for a GPU, VitisAI for an NPU",
    "intel": "OpenVINO",
    "apple": "CoreML",
    "arm": "CPU; Xnnpack and ACL take a source build",
    "qualcomm": "QNN",
    "rockchip": "Rknpu",
    "vulkan": "WebGpu",
}
"""What to write for devices and their makers, which are no providers."""
_CALLED = {
    **dict.fromkeys(("graphics", "gfx"), "gpu"),
    **dict.fromkeys(("geforce", "rtx", "jetson", "cudnn", "tensorcore"), "nvidia"),
    **dict.fromkeys(("radeon", "ryzen", "hip"), "amd"),
    **dict.fromkeys(("arc", "iris", "xpu", "sycl"), "intel"),
    **dict.fromkeys(("ane", "m1", "mac", "metal", "mps"), "apple"),
    **dict.fromkeys(("adreno", "hexagon", "htp", "snapdragon", "snpe"), "qualcomm"),
    **dict.fromkeys(("dsp", "neural", "tpu"), "npu"),
    **dict.fromkeys(("armnn", "mali", "neon", "raspberry"), "arm"),
    "rk3588": "rockchip",
}


def providers_of(device: str) -> str | None:
    """Return what to write for a device or its maker, such as GPU or Intel, in words; None for any other name.

    A number behind it, as in cuda:0 or gpu0, means one of several devices.
    """
    name = folded(device).rstrip(":0123456789") or folded(device)
    provider = _BY_NAME.get(name)
    if provider is not None:
        return f"{provider.short}, and its device as an option, which ortdeploy explain {provider.short} lists"
    return _OF_HARDWARE.get(_CALLED.get(folded(device), _CALLED.get(name, name)))


def other_names(provider: Provider) -> tuple[str, ...]:
    """Return what a provider is called elsewhere."""
    return _OTHER_NAMES.get(provider.short, ())


def short_name(name: str) -> str:
    """Return the short name of a provider as users write it, an unknown name as it is."""
    provider = find_provider(name)
    return provider.short if provider else name


def full_name(name: str) -> str:
    """Return the full name of a provider as users write it; an unknown name, which a library may carry, as it is."""
    provider = find_provider(name)
    return provider.name if provider else name


def provider_spellings() -> tuple[str, ...]:
    """Return the short names, for messages that offer the nearest."""
    return tuple(sorted(provider.short for provider in PROVIDERS))


def comes_with(provider: Provider) -> str:
    """`comes with onnxruntime-gpu`: the package that has a provider, and the plugin package, if there is one."""
    if provider.plugin is None:
        return f"comes with {provider.package}"
    if provider.plugin.package == provider.package:
        return f"comes as a plugin beside onnxruntime, with {provider.package}"
    return f"comes with {provider.package} or, as a plugin, with {provider.plugin.package}"


def render_page(provider: Provider) -> str:
    """Return the page that `ortdeploy explain` prints."""
    names = ", ".join((provider.short, *other_names(provider)))
    lines = [provider.name, f"  Written {names} or {provider.name}, in upper or lower case."]
    lines.append(f"  It {comes_with(provider)}.")
    lines.append(f"  Its tensors live in the memory of: {provider.memory or 'the CPU'}.")
    lines.append(f"  It {'compiles whole subgraphs' if provider.compiles else 'has a kernel for each node'}.")
    if provider.static_shapes:
        lines.append("  It takes no node whose shapes are not all fixed.")
    if provider.sessions_per_device:
        lines.append(f"  Sessions at a time on its device: {provider.sessions_per_device}.")
    if not provider.concurrent_runs:
        lines.append("  A session of it runs one batch at a time.")
    if not provider.claims_nodes:
        lines.append("  It takes no node of a graph.")
    if provider.plugin:
        lines.append("  The devices of its plugin are chosen by device:.")
    return "\n".join(lines)
