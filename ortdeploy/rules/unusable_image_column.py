"""What it catches: output: {images: [NAME]} that names no result, or a result that is no image.

Why: an image is whole numbers from 0 to 255: height, width and, if there are any, 1, 3 or 4 channels as the last
dimension.

Example:

    output: {path: outbox/masks, images: [mask]}     # float32 [rows, 1, 64, 64]

How to fix: name a result that is an image. In a pipeline, {do: layout} and {do: pixels} make one.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import did_you_mean
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment
    from ortdeploy.tensors.types import TensorType

RULE = Rule(id="unusable-image-column", summary="Not an image")

_RANKS, _CHANNELS = (3, 4), (1, 3, 4)


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        if not job.readable:
            continue
        for index, name in enumerate(job.spec.output.images):
            at = (*job.spec.output.at, "images", index)
            if name not in job.columns:
                detail = f'"{name}" is not written. {did_you_mean(name, job.columns)}'
                yield Finding(at=at, detail=detail, job=job.spec.name)
            elif not _is_image(job.results[name]):
                detail = (
                    f'"{name}" is {job.results[name]}, and an image is uint8 [rows, height, width, 1, 3 or 4]. In a '
                    "pipeline, {do: layout} and {do: pixels} make one."
                )
                yield Finding(at=at, detail=detail, job=job.spec.name)


def _is_image(tensor: "TensorType") -> bool:
    """Return whether a result may be an image, by what is known of its type."""
    if tensor.dtype not in {None, "uint8"}:
        return False
    return tensor.shape is None or (
        len(tensor.shape) in _RANKS
        and (len(tensor.shape) == _RANKS[0] or tensor.shape[3] in _CHANNELS or not isinstance(tensor.shape[3], int))
    )
