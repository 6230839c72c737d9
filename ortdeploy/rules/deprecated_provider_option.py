"""What it catches: a provider option that ONNX Runtime has deprecated.

Why: it has no effect any more, or will be gone in a later release.

Example:

    providers: [{provider: CUDA, options: {enable_skip_layer_norm_strict_mode: true}}, CPU]

How to fix: remove it. `ortdeploy explain PROVIDER` lists the options of a provider.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Severity
from ortdeploy.providers.catalogue import find_provider
from ortdeploy.providers.options import option_facts
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="deprecated-provider-option", summary="Provider option is deprecated", severity=Severity.WARNING)


def check(spec: "Spec") -> Iterator[Finding]:
    for entry, option in spec.written_options():
        facts = option_facts(find_provider(entry.name), option)
        if "x-deprecated" in facts:
            detail = f"{option} is deprecated since {facts['x-deprecated']}. {facts['description']}"
            yield Finding(at=(*entry.at, "options", option), detail=detail, key=True)
