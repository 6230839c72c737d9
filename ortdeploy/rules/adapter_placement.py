"""What it catches: device: on an adapter, if the model's chain has no such device, or if it names the CPU.

Why: where an adapter's matrices live follows from the provider chain. ONNX Runtime refuses the CPU's allocator
("Expecting on device allocator for LoraAdapter", today "The specified allocator must be a device allocator"). It
accepts a device's allocator only if the session has the provider. Without an allocator, it copies the matrices to where
a run needs them.

Example: adapters: {french: {path: french.onnx_adapter, model: translator, device: cpu}}

How to fix: remove device:.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.providers.catalogue import full_name
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="adapter-placement", summary="Adapter cannot be placed there")

_PROVIDERS = {"cuda": "CUDAExecutionProvider", "dml": "DmlExecutionProvider", "webgpu": "WebGpuExecutionProvider"}


def check(spec: "Spec") -> Iterator[Finding]:
    for adapter in spec.adapters:
        model = spec.model(adapter.model)
        if adapter.device is None or model is None:
            continue
        names = {full_name(entry.name) for session in model.sessions for entry in spec.chain_of(session)}
        wanted = _PROVIDERS.get(adapter.device)
        if wanted is None:
            why = (
                "ONNX Runtime refuses the CPU's allocator for an adapter (\"Expecting on device allocator for "
                "LoraAdapter\"); its matrices are in the CPU's memory without one."
            )
        elif wanted not in names:
            why = f"No session of the model has {wanted}, and an allocator of another device is refused or of no use."
        else:
            continue
        detail = f'Adapter "{adapter.name}" is placed on {adapter.device}. {why} Remove device:.'
        yield Finding(at=(*adapter.at, "device"), detail=detail, model=adapter.model)
