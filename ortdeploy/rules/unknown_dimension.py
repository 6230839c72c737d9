"""What it catches: a free dimension override for a symbol that the graph does not have.

Why: ONNX Runtime ignores it silently and the dimension stays dynamic. An accelerator that needs fixed shapes then takes
no node.

Example:

    free_dimension_overrides: {batch_size: 1}     # the graph says batch

How to fix: use the graph's name for the dimension.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import did_you_mean
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="unknown-dimension", summary="Graph has no such dimension")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for model in deployment.models:
        if model.facts.problem is not None:
            continue
        for symbol in model.spec.session.get("free_dimension_overrides", {}):
            if symbol not in model.facts.symbols:
                detail = (
                    f'Model "{model.spec.name}" has no symbolic dimension "{symbol}". '
                    f"{did_you_mean(symbol, model.facts.symbols)}"
                )
                at = (*model.spec.at, "session", "free_dimension_overrides", symbol)
                yield Finding(at=at, detail=detail, key=True, model=model.spec.name)
