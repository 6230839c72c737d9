"""What it catches: `keep` on an output whose parts may not be carried away.

Why: the ledger forgets only parts that were carried away. Parts that stay in the folder are never forgotten, so `keep`
has no effect here.

Example: `output: {path: out, keep: 90d}` without `removable: true`.

How to fix: add `removable: true`, or remove `keep`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="unusable-keep", summary="Nothing is carried away, so nothing is forgotten")


def check(spec: "Spec") -> Iterator[Finding]:
    for job in spec.jobs:
        if job.output.keep is not None and not job.output.removable:
            detail = (
                f'The output of job "{job.name}" is not removable, so nothing of it is carried away, and nothing is '
                "ever forgotten. Add removable: true, or remove keep."
            )
            yield Finding(at=(*job.output.at, "keep"), detail=detail, job=job.name)
