"""What it catches: the same execution provider twice in one chain.

Why: ONNX Runtime keeps the first, warns, and loses the options of the second.

Example:

    providers: [{provider: CUDA, options: {device_id: 0}}, {provider: CUDA, options: {device_id: 1}}, CPU]

How to fix: name each provider once, with all its options.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.providers.catalogue import full_name
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="repeated-provider", summary="Provider named twice in one chain")


def check(spec: "Spec") -> Iterator[Finding]:
    for chain in spec.written_chains():
        seen: set[str] = set()
        for entry in chain:
            name = full_name(entry.name)
            if name in seen:
                detail = (
                    f"{name} is in this chain already. ONNX Runtime would ignore this entry and its options. "
                    "Name each provider once."
                )
                yield Finding(at=entry.at, detail=detail)
            seen.add(name)
