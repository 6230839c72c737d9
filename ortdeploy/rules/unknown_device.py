"""What it catches: a device: that the provider does not offer on this machine, or device: on a built-in provider.

Why: the provider of a plugin package is given one device; without a match, the first device would be used. A built-in
provider takes its device as a provider option, such as device_id.

Example: {provider: OpenVINO, device: NPU} on a machine where OpenVINO offers only its CPU device.

How to fix: choose one of the devices that the message lists, by kind, name, vendor or number.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.deployment.resolved import missing_library
from ortdeploy.diagnostics import Certainty
from ortdeploy.providers.catalogue import find_provider
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="unknown-device", summary="Provider has no such device", certainty=Certainty.MACHINE)


def check(deployment: "Deployment") -> Iterator[Finding]:
    runtime = deployment.facts.runtime
    for model in deployment.models:
        for session, entry in ((one, entry) for one in model.sessions for entry in one.written):
            provider = find_provider(entry.name)
            if provider is None or entry.device is None or provider.name in runtime.plugin_problems:
                continue
            devices = [device for device in runtime.devices if device.provider == provider.name]
            if provider.name in runtime.available_providers:
                detail = f"{provider.name} is built into this onnxruntime; it takes its device as a provider option."
                yield Finding(at=(*entry.at, "device"), detail=detail, model=model.spec.name)
            elif devices and entry in session.unavailable and missing_library(entry, runtime) is None:
                known = ", ".join(
                    f"{device.index}: {device.kind} {device.name} ({device.vendor})" for device in devices
                )
                detail = f'{provider.name} has no device "{entry.device}" here. It offers {known}.'
                yield Finding(at=(*entry.at, "device"), detail=detail, model=model.spec.name)
