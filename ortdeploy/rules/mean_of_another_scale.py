"""What it catches: pixels that are normalized by the mean of another scale: one from 0 to 1 for pixels from 0 to 255,
or the other way round.

Why: nothing fails, and the model gives confident but wrong results. Papers and libraries write the same mean as 0.485
and as 123.675; which one is right depends on whether the pixels were divided by 255 before.

Example:

    prepare: {image: [{normalize: {mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}}]}

How to fix: put {scale: 0.00392156862745098}, which is 1/255, before a mean from 0 to 1, and leave it out before a
larger one.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Severity
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment
    from ortdeploy.manifest.spec import StepSpec

RULE = Rule(id="mean-of-another-scale", summary="Mean belongs to another scale of pixels", severity=Severity.WARNING)
_KEEPING = ("bgr", "cast", "center_crop", "grayscale", "layout", "resize", "rgb")
"""Steps after which the largest possible pixel is the same."""
_LARGEST = 255
_LIKE_BYTES = 50
"""Pixels of a larger range than this were not brought to a range from 0 to 1."""


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        for binding in job.bindings:
            if binding.source.dtype == "uint8" and binding.source.layout is not None:
                yield from _wrong_means(binding.steps, job.spec.name)


def _wrong_means(steps: Sequence["StepSpec"], job: str) -> Iterator[Finding]:
    largest: float = _LARGEST
    for step in steps:
        if step.name == "scale":
            largest *= step.options["scale"]
        elif step.name == "normalize":
            means = step.options["normalize"]["mean"]
            mean = max(means if isinstance(means, list) else [means])
            advice = None
            if 0 < mean <= 1 and largest > _LIKE_BYTES:
                advice = "Put {scale: 0.00392156862745098}, which is 1/255, before it"
            elif mean > largest > 0:
                advice = "Leave the scale before it out, or write the mean and std of that scale"
            if advice:
                detail = f"The pixels are from 0 to {largest:g} here, and the mean is {mean:g}. {advice}."
                yield Finding(at=(*step.at, "normalize"), detail=detail, job=job)
            return
        elif step.name not in _KEEPING:
            return
