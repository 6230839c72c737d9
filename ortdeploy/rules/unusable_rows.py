"""What it catches: data of which no first row can be fed to the model, and errors: does not allow for that.

Why: the run would read the same rows with the same loader and fail. Text that is no number, another element count than
the model's, a value out of range or past the end of an embedding table in all first rows is no accident of a row, but
a mistake about the data; it is found before a session exists, with field and place.

Example: pixels from 0 to 255 for an input with range: [0, 1].

How to fix: add the step or filler that is missing, or name the column that was meant.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="unusable-rows", summary="First rows cannot be fed to the model")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        found = deployment.facts.first_rows.get(job.spec.name)
        if found is not None and found.useless and not job.allows(len(found.refused)):
            yield Finding(at=(*job.spec.input.at, "path"), detail=found.text, job=job.spec.name, model=job.spec.model)
