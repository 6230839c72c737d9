"""Asks one plugin library for its devices, in a child process: a library that aborts ends only the child.

The parent calls `probe_plugin`; the child runs `main`.
"""

from collections.abc import Mapping

from msgspec import Struct, field, to_builtins

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.host import NO_DEVICE, DeviceFacts, Kernel
from ortdeploy.facts.kernel_text import dump_kernels, parse_kernels
from ortdeploy.process.child import Asked, ask
from ortdeploy.providers.catalogue import find_provider

_SECONDS = 60


class PluginFacts(Struct, frozen=True, kw_only=True):
    """What a plugin library offers, or a sentence that says why it offers no device."""

    devices: tuple[DeviceFacts, ...] = ()
    kernels: Mapping[str, tuple[Kernel, ...]] = field(default_factory=dict)
    problem: str | None = None


def probe_plugin(provider: str, library: str) -> PluginFacts:
    """Ask a plugin library for its devices and kernels."""
    done = ask(__name__, [provider, library], seconds=_SECONDS)
    if done.late:
        return PluginFacts(problem=f"Its library {library} gave no answer within {_SECONDS} s.")
    if done.code != 0 or not done.messages:
        how = f"with signal {-done.code}" if done.code < 0 else f"with code {done.code}"
        said = done.last_words or "no message"
        return PluginFacts(problem=f"Its library {library} ended the process that asked it {how}: {said}")
    answer = done.messages[-1]
    if "problem" in answer:
        return PluginFacts(problem=f"Its library cannot be used: {answer['problem']}.")
    if not answer["devices"]:
        return PluginFacts(problem=f"Its library {library} {NO_DEVICE}{_wants(provider)}.")
    return PluginFacts(
        devices=tuple(DeviceFacts(**device) for device in answer["devices"]), kernels=parse_kernels(answer["kernels"])
    )


def _wants(name: str) -> str:
    """Return whose devices a plugin takes, if it takes those of one maker only."""
    provider = find_provider(name)
    hardware = provider.plugin.hardware if provider and provider.plugin else None
    return f": it takes devices of {hardware} alone" if hardware else ""


def main(asked: Asked) -> None:
    """Entry of the child process."""
    from ortdeploy.runtime.kernels import plugin_kernels  # noqa: PLC0415
    from ortdeploy.runtime.plugins import describe, register  # noqa: PLC0415  importing may print

    provider, library = asked.request
    try:
        register(provider, library)
    except OrtdeployError as error:
        asked.say(problem=str(error).rstrip(". "))
        return
    devices = [to_builtins(device) for device in describe(provider, library)]
    asked.say(devices=devices, kernels=dump_kernels(plugin_kernels(provider)))
