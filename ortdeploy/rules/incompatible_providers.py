"""What it catches: providers in one chain that cannot share a session: two whose tensors live in different device
memories; DirectML with OpenVINO on another device than the CPU; TensorRT with TensorRT-RTX; OpenVINO's device CPU with
QNN or WebGPU. Such a chain is refused on every machine, even if none of the providers is there.

Why: ONNX Runtime copies tensors between the CPU and the first device memory of a chain only. The other providers get no
copies, and the session fails when it is created ("Execution type 'OpenVINOExecutionProvider' doesn't support memcpy" up
to 1.20, "DML EP can only be used with CPU EPs." later) or while it runs.

Example:

    providers: [OpenVINO, DirectML, CPU]

How to fix: isolate them with sessions:, as the message shows. Beside DirectML, OpenVINO may have device: CPU; beside
QNN and WebGPU, device: AUTO.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ortdeploy.manifest.isolation import advise_isolation
from ortdeploy.providers.catalogue import Provider, find_provider
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import ModelSpec, ProviderSpec, Spec

RULE = Rule(id="incompatible-providers", summary="Providers cannot share a session")

_TENSORRT_KINDS = {"TensorrtExecutionProvider", "NvTensorRTRTXExecutionProvider"}


def check(spec: "Spec") -> Iterator[Finding]:
    for model in spec.models:
        for session in model.sessions:
            yield from _check_chain(model, spec.chain_of(session))


def _check_chain(model: "ModelSpec", chain: "Sequence[ProviderSpec]") -> Iterator[Finding]:
    earlier: list[tuple[ProviderSpec, Provider]] = []
    for entry in chain:
        provider = find_provider(entry.name)
        if provider is None:
            continue
        reason = next((reason for one in earlier if (reason := _reason(one, (entry, provider)))), None)
        if reason:
            yield Finding(at=entry.at, detail=f"{reason} {advise_isolation(chain)}", model=model.name)
        earlier.append((entry, provider))


def _reason(one: "tuple[ProviderSpec, Provider]", other: "tuple[ProviderSpec, Provider]") -> str | None:
    names = {one[1].name, other[1].name}
    if names == _TENSORRT_KINDS:
        return "ONNX Runtime takes TensorRT or TensorRT-RTX in a session, not both."
    memories = {one[1].memory, other[1].memory} - {None}
    if len(memories) > 1:
        first, second = one[1].name, other[1].name
        return f"{first} and {second} keep tensors in different memories, and ONNX Runtime copies for one of them only."
    openvino = next((entry for entry, provider in (one, other) if provider.short == "OpenVINO"), None)
    if "DmlExecutionProvider" in names and openvino is not None and not _on_cpu(openvino):
        return "DirectML shares a session only with providers on the CPU, which OpenVINO is with device: CPU alone."
    return _shared_memory(*one) or _shared_memory(*other) if _mistakes(one, other) else None


def _mistakes(*pair: "tuple[ProviderSpec, Provider]") -> bool:
    return any(provider.mistakes_shared_memory for _, provider in pair)


def _shared_memory(entry: "ProviderSpec", provider: Provider) -> str | None:
    """Say that a provider shares memory on the device that is written; if none is, the machine's devices say it."""
    if provider.shares_cpu_memory_on is None or str(entry.device).upper() != provider.shares_cpu_memory_on:
        return None
    return (
        f"{provider.name} allocates a part of the CPU's memory on its device {provider.shares_cpu_memory_on}, which "
        "QNN and WebGPU would mistake for memory of their own: runs fail, or the process is aborted."
    )


def _on_cpu(openvino: "ProviderSpec") -> bool:
    device = openvino.device or openvino.options.get("device_type")
    return str(device).upper() == "CPU"
