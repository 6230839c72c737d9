"""What it catches: session.disable_cpu_ep_fallback in a chain that lists the CPU provider.

Why: ONNX Runtime refuses to create the session: "Conflicting session configuration: explicitly added the CPU EP to
the session, but also disabled fallback to the CPU EP".

Example:

    providers: [QNN, CPU]
    session: {config: {session.disable_cpu_ep_fallback: true}}

How to fix: remove the CPU from the chain, or remove the key and write cpu_fallback: forbid, which also names the
operators that were left to the CPU.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.providers.catalogue import CPU, full_name
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="contradictory-cpu-fallback", summary="CPU fallback is disabled and listed")

_KEY = "session.disable_cpu_ep_fallback"
_ON = (True, 1, "1")


def check(spec: "Spec") -> Iterator[Finding]:
    for model in spec.models:
        chains = [spec.chain_of(session) for session in model.sessions]
        listed = any(full_name(entry.name) == CPU for chain in chains for entry in chain)
        if listed and model.session.get("config", {}).get(_KEY) in _ON:
            detail = (
                f'Model "{model.name}" lists the CPU provider and disables the fallback to it. Remove one of the two; '
                "cpu_fallback: forbid keeps nodes from the CPU and says which they are."
            )
            yield Finding(at=(*model.at, "session", "config", _KEY), detail=detail, key=True, model=model.name)
