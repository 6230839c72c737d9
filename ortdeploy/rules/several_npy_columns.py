"""What it catches: a job that writes several columns into .npy files.

Why: a .npy file is one array.

Example: output: {path: out, format: npy} of a model with two outputs.

How to fix: name one column with columns:, or write format: npz, which holds one array per column.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="several-npy-columns", summary="A .npy file holds one column")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        columns = tuple(dict.fromkeys((*job.key, *job.spec.output.columns_of_lines, *job.columns)))
        if job.spec.output.format == "npy" and job.readable and len(columns) > 1:
            advice = "Write" if job.spec.output.explode else "Choose one with columns: and without key:, or write"
            detail = (
                f'Job "{job.spec.name}" writes the columns {", ".join(columns)}, and a .npy file is one array. '
                f"{advice} format: npz."
            )
            yield Finding(at=(*job.spec.output.at, "format"), detail=detail, job=job.spec.name)
