"""What it catches: a label file with more or fewer lines than the classes that an argmax or top_k before it reads.

Why: the index of a class is the number of a line. If a file has one more, such as a background at its start that the
model does not have, every name is that of another class, and nothing fails.

Example: a model with 1,000 scores and a file with 1,001 labels.

How to fix: use the file that belongs to the model, with one line for each class, the first for index 0.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Severity
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment, ResolvedJob

RULE = Rule(id="label-count-mismatch", summary="Labels are more or fewer than the classes", severity=Severity.WARNING)


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        readable = {path: file for path, file in deployment.facts.labels.items() if file.problem is None}
        yield from _mismatches(job, {path: len(file.lines) for path, file in readable.items()})


def _mismatches(job: "ResolvedJob", counts: dict[str, int]) -> Iterator[Finding]:
    sizes = {name: (one.shape or (None,))[-1] for name, one in job.outputs.items()}
    classes: dict[str, int | str | None] = {}
    for step in job.spec.postprocess:
        read, path = str(step.options.get(step.name)), step.options.get("from")
        made = str(step.options.get("as"))
        if step.name in {"sigmoid", "softmax"}:
            sizes[made] = sizes.get(read)
        elif step.name in {"argmax", "top_k"}:
            classes[made] = sizes.get(read)
        elif step.name == "labels" and path is not None:
            count, wanted = counts.get(path), classes.get(read)
            if count and isinstance(wanted, int) and count != wanted:
                detail = (
                    f"{path} has lines for {count:,} classes, and there are {wanted:,}. Names would be missing "
                    "or of other classes. Use the file that belongs to the model."
                )
                yield Finding(at=(*step.at, "from"), detail=detail, job=job.spec.name)
