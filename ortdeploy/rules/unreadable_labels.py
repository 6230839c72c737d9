"""What it catches: a label file that is missing, empty or not UTF-8 text.

Why: every row would fail in the last step.

Example: postprocess: [{labels: digit, from: labels.txt, as: name}] without labels.txt beside the manifest.

How to fix: provide the file. It has one label per line, the first for index 0.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="unreadable-labels", summary="Label file cannot be read")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        for step in job.spec.postprocess:
            path = step.options.get("from") if step.name == "labels" else None
            problem = deployment.facts.labels[path].problem if path is not None else None
            if problem is not None:
                yield Finding(at=(*step.at, "from"), detail=problem.detail, job=job.spec.name)
