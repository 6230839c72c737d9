"""What it catches: two result columns of the same name: a key and an output, two steps with the same as, or a name
written twice under columns.

Why: one would silently replace the other in the output.

Example:

    postprocess:
      - {argmax: scores, as: digit}
      - {top_k: scores, k: 3, as: digit}

How to fix: give each result a name of its own.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.manifest.spec import RESULT_OPTIONS
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="repeated-column", summary="Two columns have the same name")


def check(spec: "Spec") -> Iterator[Finding]:
    for job in spec.jobs:
        taken = set(job.input.key)
        for step in job.postprocess:
            for option in RESULT_OPTIONS:
                if option not in step.options:
                    continue
                name = step.options[option]
                if name in taken:
                    detail = f'Job "{job.name}" has another column "{name}" already. Give this one another name.'
                    yield Finding(at=(*step.at, option), detail=detail, job=job.name)
                taken.add(name)
        for index, name in enumerate(job.output.columns):
            if name in job.output.columns[:index] or name in job.input.key:
                detail = f'Job "{job.name}" writes "{name}" already. Remove it here.'
                yield Finding(at=(*job.output.at, "columns", index), detail=detail, job=job.name)
