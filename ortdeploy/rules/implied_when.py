"""What it catches: two profiles, one of which holds on each device on which the other one does.

Why: a device on which both hold is refused with ambiguous-profile, so the narrower profile is never chosen. The order
of profiles means nothing.

Example:

    large: {when: {memory: ">= 6GiB"}}
    any: {when: {memory: ">= 2GiB"}}

How to fix: let the wider one exclude the other (`memory: ">= 2GiB, < 6GiB"`, or not:), or let otherwise: name it,
without a when:.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Severity
from ortdeploy.manifest.when import implied, read_variants
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="implied-when", summary="Profile that is never chosen alone", severity=Severity.WARNING)


def check(spec: "Spec") -> Iterator[Finding]:
    variants = read_variants(spec.document)
    for when, other in implied(variants.whens) if variants else ():
        detail = (
            f'Wherever profile "{when.profile}" holds, "{other.profile}" does too, and a device on which both hold is '
            f'refused. Let "{other.profile}" exclude it, or make it what otherwise: names.'
        )
        yield Finding(at=when.at, detail=detail, key=True)
