"""What it catches: a provider name that ONNX Runtime does not know, or a provider that no Python package can load.

Why: ONNX Runtime's Python wrapper prints "Unknown Provider Type", tries again on the CPU and continues; it needs exact
names. In a manifest, a name may be short or full, in upper or lower case, or a common one: cuda, DirectML, TRT.

Example:

    providers: [cudda, CPU]

How to fix: use the name that the message offers; `ortdeploy explain NAME` prints a provider's page.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import did_you_mean
from ortdeploy.manifest.when import read_variants
from ortdeploy.providers.catalogue import SUFFIX, find_provider, provider_spellings, providers_of
from ortdeploy.providers.removed import find_gone
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="unknown-provider", summary="Provider is not known")


def check(spec: "Spec") -> Iterator[Finding]:
    for chain in spec.written_chains():
        for entry in chain:
            if find_provider(entry.name) is None and entry.library is None:  # a library may carry any provider
                yield Finding(at=entry.at, detail=_detail(entry.name))
    variants = read_variants(spec.document)
    for name, at in variants.provider_names() if variants else ():
        if find_provider(name) is None:
            yield Finding(at=at, detail=_detail(name))


def _detail(name: str) -> str:
    gone = find_gone(name)
    if gone is not None:
        return f"{gone.name} {gone.why}. {gone.advice}"
    short = name.removesuffix(SUFFIX)
    meant = providers_of(short)
    if meant:
        return f'"{name}" is the name of no execution provider. Write {meant}.'
    return f'There is no execution provider "{name}". {did_you_mean(short, provider_spellings())}'
