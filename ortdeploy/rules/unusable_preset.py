"""What it catches: a preset whose folder cannot be used: a missing component or file, a scheduler or a setting of it
that ortdeploy does not know, inputs of other types or ranks, components that do not belong together.

Why: another scheduler would silently make other images, and a component with other inputs fails at the first row.
ortdeploy approximates nothing.

Example: scheduler/scheduler_config.json with _class_name: LCMScheduler

How to fix: the message says what is wrong and what is supported.
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
