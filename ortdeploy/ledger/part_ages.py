"""How long ago the parts of an output were last written, which decides when they may be forgotten."""

import math
from collections.abc import Sequence

from ortdeploy.files.age import age_of
from ortdeploy.ledger.records import Part, Revision

_UNKNOWN = -math.inf


def ages_of(parts: Sequence[Part], now: float) -> list[float]:
    """Return the seconds since each part was last written; those since the part after it, if a clock was wrong.

    So it is for a part without a file too. Of files whose time was not noted, and of a last part whose time is not
    known, it is below any number of seconds.
    """
    found: list[float] = []
    behind = _UNKNOWN
    for part in reversed(parts):
        behind = min((_age(file, now, behind) for file in part.files), default=behind)
        found.append(behind)
    return found[::-1]


def _age(file: Part | Revision, now: float, behind: float) -> float:
    if file.mtime_ns is None:
        return _UNKNOWN
    age = age_of(file.mtime_ns / 1e9, now)
    return behind if age is None else age
