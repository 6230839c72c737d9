"""What it catches: a model file that is missing, a folder, empty, cut off, a Git-LFS pointer, not ONNX, or a link
out of the manifest's folder tree.

Why: ONNX Runtime says "Protobuf parsing failed" for all of them, even for a text file of 130 bytes that Git LFS left in
the place of the model.

Example: models: {digits: {path: digits.onnx}} after a git clone without git-lfs.

How to fix: the message says which of these it is. For a pointer, run git lfs pull.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="unreadable-model", summary="Model file cannot be used")


def check(deployment: "Deployment") -> Iterator[Finding]:
    absent = set(_parts_of_missing_folders(deployment))
    for model in deployment.models:
        problem = model.facts.problem
        if problem is not None and model.spec.name not in absent:
            yield Finding(at=(*model.spec.at, "path"), detail=problem.detail, model=model.spec.name)


def _parts_of_missing_folders(deployment: "Deployment") -> Iterator[str]:
    """Name the components of presets whose whole folder is missing, which is said once."""
    for pipeline in deployment.spec.pipelines:
        found = deployment.facts.diffusion.get(pipeline.name)
        if pipeline.preset is not None and found is not None and found.problem and found.problem.kind == "folder":
            yield from pipeline.preset.parts.values()
