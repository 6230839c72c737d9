"""What it catches: a provider that compiles subgraphs, listed after one that has a kernel for each node.

Why: the first provider takes its nodes one by one. The second asks for subgraphs, and those nodes are then missing.
Behind WebGPU, OpenVINO gets no node at all; only a line in the log says so ("nodes that were already assigned to a
different EP").

Example:

    providers: [WebGpu, OpenVINO, CPU]

How to fix: put the compiling provider first.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Severity
from ortdeploy.providers.catalogue import CPU, find_provider
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="late-compiler", summary="Compiling provider comes too late", severity=Severity.WARNING)


def check(spec: "Spec") -> Iterator[Finding]:
    for chain in spec.written_chains():
        before = None
        for entry in chain:
            provider = find_provider(entry.name)
            if provider is None or provider.name == CPU:
                continue
            if provider.compiles and before is not None:
                detail = (
                    f"{provider.name} compiles subgraphs, and {before.name} before it takes single nodes out of them; "
                    f"it may get none. Put {provider.short} first."
                )
                yield Finding(at=entry.at, detail=detail)
            elif not provider.compiles and provider.claims_nodes:
                before = before or provider
