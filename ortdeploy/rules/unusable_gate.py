"""What it catches: a model with gate: true whose checks: folder holds no golden data set, or one without outputs.

Why: apply runs the golden checks first, and runs no job unless all pass. If there is nothing to compare, none can pass.

Example: checks: [checks/digits], a folder with only inputs.npz.

How to fix: name the folder that holds test_data_set_N, input_0.pb or inputs.npz. `ortdeploy check --record` writes the
CPU provider's outputs beside the inputs.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="unusable-gate", summary="Gate cannot pass")


def check(deployment: "Deployment") -> Iterator[Finding]:
    gated = {model.spec.name for job in deployment.jobs for model in job.models if model.spec.gate}
    for model, golden in deployment.spec.checks():
        problem = deployment.facts.gate_problems.get(golden.path)
        if model in gated and problem is not None:
            yield Finding(at=golden.at, detail=problem.detail, model=model)
