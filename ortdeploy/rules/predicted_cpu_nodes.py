"""What it catches: more nodes on the CPU, behind a provider with kernels, than cpu_fallback allows.

Why: the session would be refused when it is opened; kernel definitions tell that earlier. The number is a prediction,
because ONNX Runtime still fuses and folds nodes. The recorded assignment decides. If the prediction was not tested with
the version of ONNX Runtime, the finding says that it is assumed.

Example: cpu_fallback: forbid with WebGpu, for a graph with a NonMaxSuppression.

How to fix: allow those nodes with cpu_fallback: {max_nodes: …}, or export the model without them.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Certainty, Severity
from ortdeploy.providers.catalogue import CPU
from ortdeploy.rules.protocol import Finding, Rule
from ortdeploy.units import allowed_count
from ortdeploy.versions import certainty_with

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(
    id="predicted-cpu-nodes",
    summary="Nodes will be left to the CPU",
    severity=Severity.WARNING,
    certainty=Certainty.MACHINE,
)


def check(deployment: "Deployment") -> Iterator[Finding]:
    for model in deployment.models:
        policy = model.spec.cpu_fallback
        for session in model.usable if policy not in {"allow", "warn"} else ():
            prediction = session.prediction
            if prediction is None or {provider.name for provider in session.chain} == {CPU}:
                continue
            on_cpu, total = prediction.nodes.get(CPU, 0), sum(prediction.nodes.values())
            if on_cpu > (0 if policy == "forbid" else allowed_count(policy, total)):
                detail = (
                    f'{on_cpu} of {total} nodes of model "{model.spec.name}" have a kernel on the CPU provider only '
                    f"({', '.join(prediction.cpu_operators)}), and cpu_fallback allows fewer. Allow them, or export "
                    "the model without them."
                )
                yield Finding(
                    at=(*session.spec.at, "providers"),
                    detail=detail,
                    model=model.spec.name,
                    certainty=certainty_with(deployment.facts.runtime.version),
                )
