"""What it catches: a model whose providers: names a chain that the manifest does not declare.

Why: text under providers: is the name of a chain. Write a single provider as a list: providers: [CPU].

Example:

    models: {digits: {path: digits.onnx, providers: gpu}}

How to fix: declare the chain under providers:, correct the name, or write a list.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import did_you_mean
from ortdeploy.providers.catalogue import find_provider
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="undefined-provider-chain", summary="Provider chain is not declared")


def check(spec: "Spec") -> Iterator[Finding]:
    for model in spec.models:
        for session in model.sessions:
            name = session.chain_name
            if name is None or name in spec.chains:
                continue
            hint = f"For that provider alone write providers: [{name}]." if find_provider(name) else ""
            advice = hint or did_you_mean(name, spec.chains)
            detail = f'Model "{model.name}" names the chain "{name}", which is not under providers:. {advice}'
            yield Finding(at=(*session.at, "providers"), detail=detail, model=model.name)
