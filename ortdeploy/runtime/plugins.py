"""Finds execution providers in plugin packages, registers them once per process, and lists their devices.

ONNX Runtime takes such a provider only through `add_provider_for_devices`; it silently ignores one named in
`providers=`. A library is registered under its provider's name, because QNN's takes its own name from that.
"""

import importlib
import importlib.util
from functools import cache

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.host import DeviceFacts
from ortdeploy.providers.catalogue import Provider
from ortdeploy.runtime.library import ort


def find_library(provider: Provider) -> str | None:
    """Return the library of an installed plugin package; None if there is no such package."""
    if provider.plugin is None or importlib.util.find_spec(provider.plugin.module) is None:
        return None
    module = importlib.import_module(provider.plugin.module)
    return str(module.get_library_path())


@cache
def register(provider: str, library: str) -> None:
    """Register a provider's library in this process, once. Raises OrtdeployError."""
    try:
        ort.register_execution_provider_library(provider, library)
    except Exception as error:  # every error of the binding is its own class, all derived from Exception
        raise OrtdeployError(f"the library of {provider} cannot be loaded: {error}") from error


def ep_devices(provider: str) -> list[ort.OrtEpDevice]:
    """Return the devices of a registered provider in ONNX Runtime's order, those of variants (`NAME.AUTO`) too."""
    return [device for device in ort.get_ep_devices() if device.ep_name.partition(".")[0] == provider]


def describe(provider: str, library: str) -> tuple[DeviceFacts, ...]:
    """Return the devices of a registered provider as facts."""
    return tuple(
        DeviceFacts(
            provider=provider,
            index=index,
            kind=device.device.type.name,
            vendor=device.device.vendor,
            name=_name(device),
            library=library,
            memory=_memory(device, ort.OrtDeviceMemoryType.DEFAULT),
            host_accessible_memory=_memory(device, ort.OrtDeviceMemoryType.HOST_ACCESSIBLE),
        )
        for index, device in enumerate(ep_devices(provider))
    )


def _memory(device: ort.OrtEpDevice, kind: ort.OrtDeviceMemoryType) -> str | None:
    """Return the name of a device's memory; None if its tensors live in the CPU's."""
    memory = device.memory_info(kind)
    return None if memory is None else str(memory.name)


def _name(device: ort.OrtEpDevice) -> str:
    """Return the name that distinguishes a provider's devices: OpenVINO's own, a variant, or the kind."""
    variant = device.ep_name.partition(".")[2]
    return str(device.ep_metadata.get("ov_device") or variant or device.device.type.name)
