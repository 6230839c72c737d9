"""What it catches: compressed text files in a saved plan, whose parts several processes may make.

Why: a process goes to the first row of a part by the file's index. A compressed file must be read from its start, so
the process reads and unpacks everything before that row. With many parts in one file, most of the work is unpacking.

Example: path: rows.csv.gz with 1,000 parts. The process that makes part 900 unpacks 900 parts first.

How to fix: unpack the files, or write Parquet. Many compressed files with few parts each are fine: a file of which no
row is wanted is not read.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Severity
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="unseekable-input", summary="Parts are made from compressed files", severity=Severity.WARNING)


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        if job.input.unseekable is not None:
            detail = (
                f"{job.input.unseekable} is compressed. A process that makes a part of it reads the file from its "
                "start. Unpack it if several processes run this plan."
            )
            yield Finding(at=job.spec.input.source_at, detail=detail, job=job.spec.name, model=job.spec.model)
