"""What it catches: a provider that comes after the CPU provider in a chain.

Why: providers are in order of preference, and the CPU provider takes every node that it has a kernel for. A provider
after it silently gets nothing.

Example:

    providers: [CPU, OpenVINO]

How to fix: put the CPU last.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.providers.catalogue import CPU, full_name
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="unreachable-provider", summary="Provider comes after the CPU")


def check(spec: "Spec") -> Iterator[Finding]:
    for chain in spec.written_chains():
        names = [full_name(entry.name) for entry in chain]
        if CPU not in names:
            continue
        for entry, name in list(zip(chain, names, strict=True))[names.index(CPU) + 1 :]:
            if name != CPU:
                detail = f"{name} comes after the CPU provider, which takes every node it can run. Put CPU last."
                yield Finding(at=entry.at, detail=detail)
