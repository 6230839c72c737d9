"""What it catches: a provider name that ONNX Runtime does not know, or that it no longer has.

Why: ONNX Runtime's Python wrapper prints "Unknown Provider Type", retries on the CPU and goes on; its names are exact.
Here a name may be short or full, in any case, or what the provider is commonly called: cuda, DirectML, TRT.

Example:

    providers: [cudda, CPU]

How to fix: use the name that the message offers; `ortdeploy explain NAME` prints a provider's page.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import did_you_mean
from ortdeploy.providers.catalogue import Provider, find_provider, provider_spellings
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="unknown-provider", summary="Provider is not known")


def check(spec: "Spec") -> Iterator[Finding]:
    for chain in spec.written_chains():
        for entry in chain:
            provider = find_provider(entry.name)
            if provider is None and entry.library is not None:
                continue  # a library may carry any provider
            if provider is None:
                short = entry.name.removesuffix("ExecutionProvider")
                detail = f'There is no execution provider "{entry.name}". {did_you_mean(short, provider_spellings())}'
                yield Finding(at=entry.at, detail=detail)
            elif provider.removed_in is not None:
                yield Finding(at=entry.at, detail=_removed(provider))


def _removed(provider: Provider) -> str:
    instead = f"Use {provider.instead}." if provider.instead else "Remove it from the chain."
    return f"{provider.name} was removed from ONNX Runtime in {provider.removed_in}. {instead}"
