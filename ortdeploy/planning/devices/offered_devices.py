"""Lists the devices that providers offer, for the `when` of profiles: of this machine, or as a device file tells.

`devices` of RuntimeFacts are those of plugin packages alone. A provider that is built in, such as CUDA, counts as a
device of which only that is known which all devices of the provider have in common.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from ortdeploy.facts.host import DeviceFacts, RuntimeFacts
from ortdeploy.facts.variants import OfferedDevice
from ortdeploy.providers.catalogue import CPU, PROVIDERS, find_provider, full_name

if TYPE_CHECKING:
    from ortdeploy.plan.steps import PlannedDevice

_OF_MEMORY = {
    "AMD GPU": ("GPU", "AMD"),
    "Ascend NPU": ("NPU", "Huawei"),
    "DirectML": ("GPU", None),
    "NVIDIA GPU": ("GPU", "NVIDIA"),
}
"""Kind and vendor of devices, by the memory in which the tensors of their provider live."""


def built_in_device(provider: str, *, opens: bool | None = None) -> OfferedDevice:
    """Return the device of a built-in provider."""
    known = find_provider(provider)
    kind, vendor = _OF_MEMORY.get((known and known.memory) or "", (None, None))
    return OfferedDevice(provider=provider, kind="CPU" if provider == CPU else kind, vendor=vendor, opens=opens)


def plugin_device(provider: str, device: "DeviceFacts | PlannedDevice", *, opens: bool | None = None) -> OfferedDevice:
    """Return a device of a plugin package's provider."""
    return OfferedDevice(provider=provider, kind=device.kind, vendor=device.vendor, name=device.name, opens=opens)


def described_devices(
    runtime: RuntimeFacts, opens: Collection[str] | None, *, tells_devices: bool
) -> tuple[OfferedDevice, ...]:
    """Return what a device file tells of devices; providers that may have some of which it says nothing are there too.

    `opens` are the providers that open a session, None if the file does not say; `tells_devices`: it lists those of
    plugin packages.
    """
    known = None if opens is None else {full_name(one) for one in opens}
    listed = {one.provider for one in runtime.devices}
    alone = {*runtime.available_providers, *(known or ())} - listed
    if known is None and not tells_devices:
        alone |= {one.name for one in PROVIDERS if one.plugin is not None} - listed

    def does_open(provider: str) -> bool | None:
        return provider in known if known is not None else True if provider == CPU else None

    return (
        *(plugin_device(one.provider, one, opens=does_open(one.provider)) for one in runtime.devices),
        *(built_in_device(name, opens=does_open(name)) for name in sorted(alone)),
    )
