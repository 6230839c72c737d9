"""What it catches: a dynamically quantized model (DynamicQuantizeLinear and the like) that runs in batches of several
rows, if it does not say that its rows depend on each other.

Why: the scale comes from the largest value of the whole batch. One outlier makes the results of all rows beside it
coarser. So a row's results change with the rows beside it: with another batch size, after a row that failed, in a
retry.

Example: a model that quantize_dynamic has made, and batch: {size: 32}.

How to fix: say by how much results may differ, or that nothing is compared; or run one row at a time:

    row_independence: {rtol: 0.05}
    row_independence: false
    batch: {size: 1}
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Severity
from ortdeploy.facts.operators import DYNAMIC_QUANTIZATION
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment, ResolvedModel

RULE = Rule(id="scale-of-the-batch", summary="Quantization takes its scale from all rows", severity=Severity.WARNING)


def check(deployment: "Deployment") -> Iterator[Finding]:
    for model in deployment.models:
        found = sorted({node.operator for node in model.facts.nodes if node.operator in DYNAMIC_QUANTIZATION})
        undeclared = model.spec.checks_rows and model.spec.row_tolerance is None
        if not found or not undeclared or not _runs_several(deployment, model):
            continue
        detail = (
            f'{" and ".join(found)} of model "{model.spec.name}" takes its scale from all rows of a batch, so a row\'s '
            "results depend on the rows beside it. Write in the model: row_independence: {rtol: 0.05}, or "
            "row_independence: false to compare nothing. Or run rows one by one: batch: {size: 1}."
        )
        yield Finding(at=model.spec.at, detail=detail, key=True, model=model.spec.name)


def _runs_several(deployment: "Deployment", model: "ResolvedModel") -> bool:
    """Return whether some job runs several rows of a model at a time."""
    return any(model in job.models and job.batching.run_size > 1 and not job.has_state for job in deployment.jobs)
