"""What it catches: a node of the graph for which no provider of the chain has a kernel.

Why: ONNX Runtime refuses the session ("Could not find an implementation for …"). Which kernels exist is known before
that, for this machine and for one that a device file describes. In a chain with a provider that compiles, the recorded
assignment decides, because such a provider chooses its nodes itself. If a session of the CPU provider was opened while
the plan was made, its result decides.

Example: a Cos of float64 on a provider whose only kernel for it takes float32; an operator of a custom domain.

How to fix: export the model with another element type or operator set, or add a provider that has the kernel.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Certainty
from ortdeploy.providers.catalogue import CPU
from ortdeploy.rules.protocol import Finding, Rule
from ortdeploy.versions import certainty_with

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment, ResolvedModel, ResolvedSession
    from ortdeploy.facts.models import NodeFacts

RULE = Rule(id="unsupported-operator", summary="No provider can run a node", certainty=Certainty.MACHINE)

_SHOWN = 3


def check(deployment: "Deployment") -> Iterator[Finding]:
    for model in deployment.models:
        for session in (one for one in model.usable if not _is_opened(one, model, deployment)):
            prediction = session.prediction
            if prediction is not None and prediction.impossible:
                names = ", ".join(provider.name for provider in session.chain)
                shown = "; ".join(f"{_node(node)}: {why}" for node, why in prediction.impossible[:_SHOWN])
                more = len(prediction.impossible) - _SHOWN
                rest = f", and {more} more" if more > 0 else ""
                detail = (
                    f'Model "{model.spec.name}" has nodes that no provider of {names} can run: {shown}{rest}. '
                    "Export it with another element type or operator set, or add a provider that has the kernel."
                )
                yield Finding(
                    at=(*model.spec.at, "path"),
                    detail=detail,
                    model=model.spec.name,
                    certainty=certainty_with(deployment.facts.runtime.version),
                )


def _is_opened(session: "ResolvedSession", model: "ResolvedModel", deployment: "Deployment") -> bool:
    """Return whether ONNX Runtime was seen to make such a session: the optimizer may have made another node of it."""
    opening = deployment.preflight.openings.get(model.spec.name)
    proven = opening is not None and opening.with_kernels and opening.refusal is None
    return proven and {provider.name for provider in session.chain} == {CPU}


def _node(node: "NodeFacts") -> str:
    operator = node.operator if node.domain == "ai.onnx" else f"{node.domain}.{node.operator}"
    return f"{operator} {node.since}" + (f" ({node.name})" if node.name else "")
