"""What it catches: expect: of a column that is not written, or of an output whose rows cannot be read as a whole.

Why: what is expected is compared with the parts of a run when it ends. Parts of a removable output may be gone then.
Rows that run again (on_change: rerun) take the places of old ones in parts of earlier runs, and rows of another job may
run again while the old ones still count.

Example:

    output: {path: out, columns: [digit]}
    expect: {probability: {mean: [0.5, 1.0]}}

How to fix: name a column of the output, a result or a key. In CSV, a vector is several columns; take another format.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import did_you_mean
from ortdeploy.results.expectations import OTHERWISE, ROWS
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment, ResolvedJob

RULE = Rule(id="unusable-expect", summary="Expectations that cannot be looked at")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        spec = job.spec
        if not spec.expect:
            continue
        why_not = _why_not(job)
        if why_not is not None:
            detail = (
                f"What job {spec.name} expects is compared with its parts, and {why_not}. Leave out one of the two."
            )
            yield Finding(at=(*spec.at, "expect"), detail=detail, job=spec.name)
        known = [*job.columns, *job.key]
        for name in spec.expect.keys() - {ROWS, OTHERWISE} if job.readable else ():
            at = (*spec.at, "expect", name)
            result = job.results.get(name)
            if name not in known:
                yield Finding(at=at, detail=f'"{name}" is not written. {did_you_mean(name, known)}', job=spec.name)
            elif (
                spec.output.format == "csv"
                and result is not None
                and result.shape is not None
                and len(result.shape) > 1
            ):
                detail = f'"{name}" is {result}, which CSV writes as several columns. Write jsonl or parquet.'
                yield Finding(at=at, detail=detail, job=spec.name)


def _why_not(job: "ResolvedJob") -> str | None:
    """Return why an output's rows cannot be counted; None if they can."""
    spec = job.spec
    if spec.output.removable:
        return "those of a removable output may be gone (removable: true)"
    if spec.input.arrivals.on_change == "rerun":
        return "rows that run again go into those of earlier runs (on_change: rerun)"
    if spec.input.jobs:
        return "rows of another job may run again and be in two of them"
    return None
