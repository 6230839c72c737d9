"""What it catches: `on_change: rerun` on a job whose rows take the `state` of the row before.

Why: with `rerun`, only the rows of a changed file run again. Here they would change the state for all later rows, and
so their results.

Example: `input: {path: inbox/*.wav, on_change: rerun}` of a pipeline with `state`.

How to fix: remove `on_change`, which refuses a changed file, or write `append`. `apply --new-run` starts over.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="unusable-rerun", summary="Rows cannot run again by themselves")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        if job.has_state and job.spec.input.arrivals.on_change == "rerun":
            detail = (
                f'Rows of job "{job.spec.name}" take the state of the row before, so those of a changed file cannot '
                "run again without all later ones. Write on_change: append, or refuse."
            )
            yield Finding(at=(*job.spec.input.at, "on_change"), detail=detail, job=job.spec.name)
