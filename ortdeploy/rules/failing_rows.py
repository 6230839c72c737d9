"""What it catches: some first rows of a job's data that cannot be fed to the model.

Why: they will end in _failed.jsonl, or fail the job where errors: does not allow for as many.

Example: two empty cells in the first rows of a CSV.

How to fix: correct them, add a filler, as in input: {missing: {age: 0}}, or allow for them: errors: {max_failed: 1%}.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Severity
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="failing-rows", summary="First rows would fail", severity=Severity.WARNING)


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        found = deployment.facts.first_rows.get(job.spec.name)
        if found is None or not found.refused:
            continue
        allowed = job.allows(len(found.refused))
        if not found.useless or allowed:
            budget = "" if allowed is not False else f" The job will fail: max_failed is {job.spec.max_failed}."
            at = (*job.spec.input.at, "path")
            yield Finding(at=at, detail=f"{found.text}{budget}", job=job.spec.name, model=job.spec.model)
