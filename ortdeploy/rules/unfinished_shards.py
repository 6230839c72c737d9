"""What it catches: an output with parts made in shards that `ortdeploy finish` has not put into the ledger yet.

Why: until then, only the decisions of the shards say which parts are committed. A run on one machine reads the ledger
alone, and would make the same rows again.

Example: `ortdeploy apply PLAN --shard 0/2` has run, `1/2` has not, and somebody applies the manifest.

How to fix: run the remaining shards, then `ortdeploy finish PLAN`. If the plan file is lost, or the manifest, the model
or ONNX Runtime is another one now, start over with `ortdeploy apply --new-run`. It keeps the old folder, or the objects
on a store, under another name, and shards of the old plan that are still running add nothing to the new run.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="unfinished-shards", summary="Output is made in shards that are not finished")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        if job.output.shards == "open" and job.output.state != "stale":
            detail = (
                f'"{job.spec.output.path}" holds parts of a plan that runs in shards and is not finished. Run the '
                "shards that are left with ortdeploy apply PLAN --shard I/N, then ortdeploy finish PLAN. If that plan "
                "can no longer be run, ortdeploy apply --new-run starts over, and keeps what is there under another "
                "name."
            )
            yield Finding(at=(*job.spec.output.at, "path"), detail=detail, job=job.spec.name)
