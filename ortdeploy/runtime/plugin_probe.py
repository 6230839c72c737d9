"""Asks one plugin library for its devices, in a process of its own: a library that aborts takes only that with it.

The parent calls `probe_plugin`; the child is `python -m ortdeploy.runtime.plugin_probe PROVIDER LIBRARY`. Its answer
goes to the standard output that it was started with; whatever the library prints goes to standard error.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from ortdeploy.facts.host import DeviceFacts, Kernel
from ortdeploy.facts.kernel_text import dump_kernels, parse_kernels
from ortdeploy.process.child import child_command
from ortdeploy.providers.catalogue import find_provider

_SECONDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginFacts:
    """What a plugin library offers, or a sentence that says why it offers no device."""

    devices: tuple[DeviceFacts, ...] = ()
    kernels: Mapping[str, tuple[Kernel, ...]] = field(default_factory=dict)
    problem: str | None = None


def probe_plugin(provider: str, library: str) -> PluginFacts:
    """Ask a plugin library for its devices and kernels."""
    try:
        done = subprocess.run(  # noqa: S603  our own module
            _command(provider, library),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return PluginFacts(problem=f"Its library {library} gave no answer within {_SECONDS} s.")
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        how = f"with signal {-done.returncode}" if done.returncode < 0 else f"with code {done.returncode}"
        said = lines[-1] if lines else "no message"
        return PluginFacts(problem=f"Its library {library} ended the process that asked it {how}: {said}")
    answer = json.loads(done.stdout)
    if not answer["devices"]:
        return PluginFacts(problem=f"Its library {library} was loaded and offers no device here{_wants(provider)}.")
    return PluginFacts(
        devices=tuple(DeviceFacts(**device) for device in answer["devices"]), kernels=parse_kernels(answer["kernels"])
    )


def _wants(name: str) -> str:
    """Say whose devices a provider's plugin takes, where it takes one maker's alone."""
    provider = find_provider(name)
    hardware = provider.plugin.hardware if provider and provider.plugin else None
    return f": it takes devices of {hardware} alone" if hardware else ""


def _command(provider: str, library: str) -> list[str]:
    return child_command("ortdeploy.runtime.plugin_probe", provider, library)


def main() -> None:
    """Be the child."""
    answer = os.dup(1)
    os.dup2(2, 1)
    from ortdeploy.runtime.kernels import plugin_kernels  # noqa: PLC0415
    from ortdeploy.runtime.plugins import describe, register  # noqa: PLC0415  importing may print

    provider, library = sys.argv[1:]
    register(provider, library)
    devices = [asdict(device) for device in describe(provider, library)]
    text = json.dumps({"devices": devices, "kernels": dump_kernels(plugin_kernels(provider))})
    with os.fdopen(answer, "w", encoding="utf-8") as stream:
        stream.write(text)
    os._exit(0)  # without the library's own clean-up, which may print or abort


if __name__ == "__main__":
    main()
