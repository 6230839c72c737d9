"""What it catches: a model, an adapter, a constant or a preset's folder whose SHA-256 is not the one that is pinned.

Why: the file on this machine is not the one that was reviewed: an older copy, a broken transfer, or another model.

Example:

    models: {digits: {path: digits.onnx, sha256: 4f1c…}}

How to fix: use the file that was pinned. If the new file is the right one, write its digest with ortdeploy lock.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.manifest.pipelines import CONSTANT, walk
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="digest-mismatch", summary="File does not have the pinned digest")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for model in deployment.models:
        yield from _compare(model.spec.sha256, model.facts.sha256, model.spec.path, model.spec.at)
    for adapter in deployment.spec.adapters:
        have = deployment.facts.adapters[adapter.name].sha256
        yield from _compare(adapter.sha256, have, adapter.path, adapter.at)
    for pipeline in deployment.spec.pipelines:
        if pipeline.preset is not None:
            have = deployment.facts.diffusion[pipeline.name].folder_sha256
            yield from _compare(pipeline.preset.sha256, have, pipeline.preset.folder, pipeline.at)
        for step in walk(pipeline.steps):
            if CONSTANT in step.options:
                path = step.options[CONSTANT]
                yield from _compare(step.options.get("sha256"), deployment.facts.resources[path].sha256, path, step.at)


def _compare(want: str | None, have: str, path: str, at: tuple[str | int, ...]) -> Iterator[Finding]:
    if want is not None and have and have != want:
        advice = "Use the pinned file, or pin this one with ortdeploy lock."
        detail = f"{path} has the digest {have}, and sha256: pins another one. {advice}"
        yield Finding(at=(*at, "sha256"), detail=detail)
