"""What it catches: an input file that cannot be read as its format says, or that holds something else than its suffix
or `format:` says; a format that the suffix does not tell; a link that leads out of the manifest's folder tree, or
nowhere; and a pipe, a socket or a device among the files.

Why: the first rows would fail one by one, after the session was opened.

Example: a .npy that was cut off; a .csv that is a Parquet table; input: {path: inbox/*} without format:.

How to fix: the message says what is wrong with which file. errors: {max_failed: 1} lets such a file of many fail as one
row, and the others run.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.facts.problems import CHANGED, ELSEWHERE, WAITING
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="unreadable-input", summary="Input cannot be read")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        problem = job.input.problem
        if problem is not None and problem.kind not in {"unmatched", CHANGED, ELSEWHERE, WAITING}:
            yield Finding(at=job.spec.input.source_at, detail=problem.detail, job=job.spec.name)
