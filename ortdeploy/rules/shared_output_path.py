"""What it catches: two jobs that write into the same folder, or one into a folder inside the other's.

Why: parts of two jobs would mix, and neither output could be known to be complete.

Example:

    jobs: {a: {output: {path: outbox}, …}, b: {output: {path: outbox/b}, …}}

How to fix: give each job a folder of its own.
"""

import posixpath
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="shared-output-path", summary="Two jobs write to the same place")


def check(spec: "Spec") -> Iterator[Finding]:
    taken: list[tuple[str, str]] = []
    for job in spec.jobs:
        folder = posixpath.normpath(job.output.shown)
        for other, name in taken:
            if folder == other or folder.startswith(f"{other}/") or other.startswith(f"{folder}/"):
                detail = f'Job "{name}" writes to "{other}" already. Give job "{job.name}" a folder of its own.'
                yield Finding(at=(*job.output.at, "path"), detail=detail, job=job.name)
                break
        taken.append((folder, job.name))
