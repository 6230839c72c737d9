"""What it catches: devices in one chain whose memories do not work together: two devices that each have a memory of
their own; or a device whose provider shares a part of the CPU's memory, together with any other provider. If a provider
is not on the machine, the rule assumes its device: the one that is written, or else its first.

Why: ONNX Runtime copies tensors for the first device memory of a chain only. And OpenVINO's CPU device allocates shared
memory that other providers mistake for memory of their own: QNN fails when it runs ("No HTP or DX12 allocation found
for shared memory address"), and with WebGPU the process is aborted ("Invalid memory type: -1").

Example:

    providers: [QNN, {provider: OpenVINO, device: CPU}, CPU]

How to fix: give each device a session of its own, as the message shows. Or use OpenVINO's device AUTO, which shares no
memory.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Certainty
from ortdeploy.manifest.isolation import advise_isolation
from ortdeploy.providers.catalogue import CPU, Provider, find_provider
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment, ResolvedProvider, ResolvedSession
    from ortdeploy.manifest.spec import ProviderSpec

RULE = Rule(id="incompatible-devices", summary="Devices cannot share a session", certainty=Certainty.MACHINE)


def check(deployment: "Deployment") -> Iterator[Finding]:
    for model in deployment.models:
        for session in model.sessions:
            chain = [provider for provider in session.chain if provider.name != CPU]
            here = _shared_memory(chain) or _two_memories(chain)
            reason = here or _shared_memory_of_absent(session)
            if reason:
                detail = f"{reason} {advise_isolation(session.written)}"
                certainty = None if here else Certainty.ASSUMED
                at = (*session.spec.at, "providers")
                yield Finding(at=at, detail=detail, model=model.spec.name, certainty=certainty)


def _shared_memory(chain: "list[ResolvedProvider]") -> str | None:
    sharing = next((p for p in chain if p.device is not None and p.device.host_accessible_memory), None)
    others = [provider.name for provider in chain if provider is not sharing]
    if sharing is None or sharing.device is None or not others:
        return None
    return (
        f"{sharing.name} allocates {sharing.device.host_accessible_memory} on its device {sharing.device.name}, which "
        f"{' and '.join(others)} would mistake for memory of their own."
    )


def _shared_memory_of_absent(session: "ResolvedSession") -> str | None:
    """Say what a provider that is not here would do on its device, or to one that would take its memory for its own."""
    mistaking = [name for entry in session.written if (name := _mistakes_memory(entry))]
    sharing = next((provider for entry in session.unavailable if (provider := _shares_by_default(entry))), None)
    if sharing is not None and mistaking:
        return (
            f"{sharing.name} is not here, and no device is chosen for it. It would take its first, which is "
            f"{sharing.shares_cpu_memory_on} and allocates a part of the CPU's memory, which {' and '.join(mistaking)} "
            "would mistake for memory of their own."
        )
    here = next((p for p in session.chain if p.device is not None and p.device.host_accessible_memory), None)
    absent = [name for entry in session.unavailable if (name := _mistakes_memory(entry))]
    if here is None or here.device is None or not absent:
        return None
    return (
        f"{here.name} allocates {here.device.host_accessible_memory} on its device {here.device.name}, which "
        f"{' and '.join(absent)} would take for their own; that provider is not here."
    )


def _shares_by_default(entry: "ProviderSpec") -> Provider | None:
    """Return the provider of an entry that shares memory on its first device, if the entry chooses none or that."""
    provider = find_provider(entry.name)
    return provider if provider and provider.shares_cpu_memory_on and entry.device in {None, 0} else None


def _mistakes_memory(entry: "ProviderSpec") -> str | None:
    provider = find_provider(entry.name)
    return provider.name if provider and provider.mistakes_shared_memory else None


def _two_memories(chain: "list[ResolvedProvider]") -> str | None:
    memories = {memory: provider.name for provider in chain if (memory := _memory(provider))}
    if len(memories) < 2:  # noqa: PLR2004  two memories do not go together
        return None
    shown = " and ".join(f"{name} ({memory})" for memory, name in memories.items())
    return f"{shown} keep tensors in different memories, and ONNX Runtime copies for one of them only."


def _memory(provider: "ResolvedProvider") -> str | None:
    """Return the device memory of a provider: what its device says, or else what the catalogue knows."""
    if provider.device is not None:
        return provider.device.memory
    known = find_provider(provider.name)
    return known.memory if known else None
