"""What it catches: a provider that never takes a node: Azure's.

Why: it is in every onnxruntime wheel and in the list of available providers. In a session it is listed, and does
nothing.

Example:

    providers: [Azure, CPU]

How to fix: remove it from the chain.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.providers.catalogue import find_provider
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="idle-provider", summary="Provider never takes a node")


def check(spec: "Spec") -> Iterator[Finding]:
    for chain in spec.written_chains():
        for entry in chain:
            provider = find_provider(entry.name)
            if provider is not None and not provider.claims_nodes:
                detail = f"{provider.name} takes no node of any graph, although it is listed. Remove it."
                yield Finding(at=entry.at, detail=detail)
