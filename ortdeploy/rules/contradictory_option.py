"""What it catches: a session, run or provider option that another option, or the chain, makes impossible.

Why: ONNX Runtime or the provider refuses to create such a session, or refuses every run in it, often with a message
about its own source code. The schemas say which options exclude each other, and where that is written: ortdeploy
schema.

Example:

    providers: [QNN, CPU]
    session: {config: {session.disable_cpu_ep_fallback: true}}

How to fix: remove one of the two, as the message says.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.manifest.relations import REFUSED, find_relations
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="contradictory-option", summary="Option contradicts another, or the chain")


def check(spec: "Spec") -> Iterator[Finding]:
    for model in spec.models:
        for at, detail in find_relations(spec, model, REFUSED):
            yield Finding(at=at, detail=detail, key=True, model=model.name)
