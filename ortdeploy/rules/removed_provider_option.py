"""What it catches: a provider option that ONNX Runtime no longer has.

Why: some providers refuse it when the session is opened, others silently ignore it.

Example:

    providers: [{provider: OpenVINO, options: {use_compiled_network: true}}, CPU]

How to fix: remove it. `ortdeploy explain PROVIDER` lists the options of a provider.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.providers.catalogue import find_provider
from ortdeploy.providers.options import option_facts
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="removed-provider-option", summary="Provider option no longer exists")


def check(spec: "Spec") -> Iterator[Finding]:
    for entry, option in spec.written_options():
        facts = option_facts(find_provider(entry.name), option)
        if "x-removed" in facts:
            detail = f"{option} was removed in {facts['x-removed']}. {facts['description']}"
            yield Finding(at=(*entry.at, "options", option), detail=detail, key=True)
