"""What it catches: first rows of a job's data that cannot be fed to the model, if they are more than errors: can ever
allow; or data that cannot be read to its end.

Why: the run would read the same rows with the same loader and fail. So it is refused before a session exists. The
message names row, field and place. A number in max_failed is compared as it is, max_consecutive with the longest series
of such rows, and a share with the number of rows. If that number is unknown, a share counts as exceeded if none of the
first rows can be fed.

Example: pixels from 0 to 255 for an input with range: [0, 1]. One empty cell in a CSV, and no errors:.

How to fix: add the missing step or filler, name the right column, or allow for such rows with errors: {max_failed: 1%}.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.deployment.delimiters import advice_on_delimiter
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment, ResolvedJob
    from ortdeploy.facts.preflight import FirstRows

RULE = Rule(id="unusable-rows", summary="First rows cannot be fed to the model")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        found = deployment.preflight.first_rows.get(job.spec.name)
        if found is not None and found.refused and job.is_doomed(found):
            detail = f"{found.text} {_reason(job, found)}"
            yield Finding(at=job.spec.input.source_at, detail=detail, job=job.spec.name, model=job.spec.model)


def _reason(job: "ResolvedJob", found: "FirstRows") -> str:
    """Say what makes the failure certain, and what would allow for it."""
    most = job.spec.max_consecutive
    if found.stopped:
        return "The job would fail there, whatever errors: allows."
    if most is not None and found.consecutive > most:
        return f"The job would fail: {found.consecutive} of them follow each other, and max_consecutive is {most}."
    fails = f"The job would fail: max_failed is {job.spec.max_failed}."
    if found.useless and not found.first:
        advice = advice_on_delimiter(job.input) or "Correct the rows, or the columns and steps that feed them."
        return f"{fails} {advice}"
    return f"{fails} Correct the rows, or allow for such rows with errors: {{max_failed: {_enough(job, found)}%}}."


def _enough(job: "ResolvedJob", found: "FirstRows") -> int:
    """Return the share of the job's rows, in whole percent, that is needed for those that are refused."""
    rows = found.first + (found.rows if found.complete else job.input.rows or found.rows)
    return -(-100 * len(found.refused) // rows)
