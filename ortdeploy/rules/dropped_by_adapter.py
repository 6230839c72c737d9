"""What it catches: batch: {last: drop} in a job that chooses adapters by a column.

Why: rows are sorted by adapter before they run, so nearly every adapter has a short last batch. The dropped rows would
not be those at the end of the input.

Example: adapter: {column: language, …} with batch: {size: 32, last: drop}.

How to fix: use last: short, or last: pad.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="dropped-by-adapter", summary="Rows chosen by adapter cannot be dropped")


def check(spec: "Spec") -> Iterator[Finding]:
    for job in spec.jobs:
        if job.adapters.column is not None and job.batch.last == "drop":
            detail = (
                f'Job "{job.name}" sorts its rows by adapter, so that each adapter may have a short last batch; '
                "dropping those would lose rows anywhere in the input. Use last: short, or last: pad."
            )
            yield Finding(at=(*job.at, "batch", "last"), detail=detail, job=job.name, model=job.model)
