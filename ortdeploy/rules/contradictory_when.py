"""What it catches: a when: that holds on no device.

Why: its profile would never be chosen, and nobody would see that.

Example:

    when: {memory: ">= 8GiB, < 4GiB"}
    when: {architecture: aarch64, not: {architecture: [aarch64, armv7l]}}

How to fix: correct the bounds, or what stands under not:, which excludes devices on which all of its keys hold.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.manifest.when import Boxes, read_variants
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="contradictory-when", summary="Profile that no device can have")


def check(spec: "Spec") -> Iterator[Finding]:
    variants = read_variants(spec.document)
    if variants is None:
        return
    boxes = Boxes(variants.whens)
    for when in variants.whens:
        if boxes.is_empty(when):
            excludes = ", and not: excludes all that the other keys allow" if when.excluded else ""
            detail = (
                f'The when: of profile "{when.profile}" holds on no device: its keys contradict each other{excludes}.'
            )
            yield Finding(at=when.at, detail=detail, key=True)
