"""What it catches: first rows of a job's data that cannot be fed to the model, if errors: may allow for them.

Why: they will end in _failed.jsonl, and they count towards max_failed and max_consecutive. If they are more than
errors: can ever allow, they are the error unusable-rows.

Example: two empty cells in the first rows of a CSV, and errors: {max_failed: 1%}.

How to fix: nothing, if such rows are expected. Otherwise correct them, or add a filler, as in input: {missing: {age:
0}}.
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
        found = deployment.preflight.first_rows.get(job.spec.name)
        if found is not None and found.refused and not job.is_doomed(found):
            at = job.spec.input.source_at
            yield Finding(at=at, detail=found.text, job=job.spec.name, model=job.spec.model)
