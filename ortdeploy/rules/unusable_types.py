"""What it catches: output: {types: …} for a column that is not carried from the input to the output.

Why: results have the type that the model gives them, and a column that no row carries is not written.

Example:

    input: {path: a.csv, key: [device]}
    output: {path: out, types: {devise: text}}

How to fix: name a column of key:. A result gets another type from a step: cast, in the model's graph or its pipeline.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import did_you_mean
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="unusable-types", summary="No carried column has this name")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        for name in job.spec.output.types:
            if name in job.key:
                continue
            what = f'"{name}" is a result, whose type the model gives' if name in job.columns else f'no key is "{name}"'
            detail = f"types: is for columns of key:, and {what}. {did_you_mean(name, job.key)}"
            yield Finding(at=(*job.spec.output.at, "types", name), detail=detail, key=True, job=job.spec.name)
