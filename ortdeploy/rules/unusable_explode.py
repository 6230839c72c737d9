"""What it catches: output: {explode: NAME}, if the result is not written, lists nothing, or would need the name of
another column.

Why: one line is written for each item of a row, with the columns row and item. A result with one value per row has no
items, and an image is a file of its own.

Example:

    output: {path: out, explode: scores}     # scores is float32 [rows]

How to fix: name a result whose rows list something: what an each collects, boxes, or an output with a dimension after
the rows. Rename results that are called row or item.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import did_you_mean
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment, ResolvedJob

RULE = Rule(id="unusable-explode", summary="No lines can be made of it")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        if not job.readable or not job.spec.output.explode:
            continue
        at = (*job.spec.output.at, "explode")
        for name in job.spec.output.explode:
            reason = _reason(name, job)
            if reason is not None:
                yield Finding(at=at, detail=reason, key=True, job=job.spec.name)
        keys = set(_keys(job))
        for name in sorted(keys.union(job.columns).intersection(job.spec.output.columns_of_lines)):
            advice = "Leave it out of key:, or rename it in the input." if name in keys else "Rename that one."
            detail = f'Each line gets a column "{name}", and the job writes another one of that name. {advice}'
            yield Finding(at=at, detail=detail, key=True, job=job.spec.name)


def _keys(job: "ResolvedJob") -> Iterator[str]:
    """Yield the key columns, without the row's own number, which is the same."""
    yield from (name for name in job.spec.input.key if name != "row" or "row" in job.input.columns)


def _reason(name: str, job: "ResolvedJob") -> str | None:
    if name not in job.columns:
        return f'"{name}" is not written. {did_you_mean(name, job.columns)}'
    if name in job.spec.output.files:
        return f'"{name}" is written as files, one a row. Remove it from one of the two.'
    tensor = job.results.get(name)
    if tensor is not None and tensor.shape is not None and len(tensor.shape) < 2:  # noqa: PLR2004  rows and items
        return f'"{name}" is {tensor}: a row has one value, and no items.'
    return None
