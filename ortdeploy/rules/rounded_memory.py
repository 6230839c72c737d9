"""What it catches: a when: that asks for at least 2, 4, 8, 16 or 32 GiB of memory.

Why: a board that is sold with 8 GiB has less, because firmware and GPU keep some. Linux shows about 7.4 GiB of it, so
the profile is not chosen on the boards that are meant.

Example:

    when: {memory: ">= 8GiB"}

How to fix: ask for less than is sold, such as `>= 7GiB`, or for more than the next smaller board has: `> 4GiB`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Severity
from ortdeploy.manifest.when import comparisons, read_variants
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="rounded-memory", summary="Boards report less memory than this", severity=Severity.WARNING)

_GIB = 1024**3
_SOLD = frozenset({2, 4, 8, 16, 32})


def check(spec: "Spec") -> Iterator[Finding]:
    variants = read_variants(spec.document)
    for term in variants.terms() if variants else ():
        for sign, bound in comparisons(term.text) if term.key == "memory" else ():
            if sign == ">=" and bound % _GIB == 0 and bound // _GIB in _SOLD:
                size = bound // _GIB
                detail = (
                    f"A board that is sold with {size} GiB reports less, because firmware and GPU keep some of it. So "
                    f'this does not hold there. Ask for less, such as ">= {size - size / 8:g}GiB".'
                )
                yield Finding(at=term.at, detail=detail)
