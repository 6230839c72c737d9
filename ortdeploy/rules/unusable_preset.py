"""What it catches: a folder of a preset that cannot be used: a missing component or file, a scheduler or one of its
settings that ortdeploy does not know, inputs of other types or ranks, components that are not of one pipeline.

Why: another scheduler would paint other images without an error, and a component of another layout fails at the first
row. Nothing is approximated.

Example: scheduler/scheduler_config.json with _class_name: LCMScheduler

How to fix: the message names what is wrong and what is supported.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="unusable-preset", summary="Preset cannot be used")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for pipeline in deployment.spec.pipelines:
        facts = deployment.facts.diffusion.get(pipeline.name)
        if facts is not None and facts.problem is not None and facts.problem.kind in {"preset", "folder"}:
            yield Finding(at=(*pipeline.at, "from"), detail=facts.problem.detail)
