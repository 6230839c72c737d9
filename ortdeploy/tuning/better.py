"""The one rule for what is better: speeds differ from try to try, so what takes more must be clearly faster."""

from collections.abc import Mapping
from typing import TypeVar

WORTH = 1.03
"""How many times as fast a setting must be as one that takes less, or that was tried before."""

_T = TypeVar("_T")


def is_better(rate: float, than: float) -> bool:
    """Return whether a speed is clearly better than another one."""
    return rate > than * WORTH


def first_of_the_fastest(rates: Mapping[_T, float]) -> _T:
    """Return the first setting that none is clearly better than; those that take less come first."""
    fastest = max(rates.values())
    return next(setting for setting, rate in rates.items() if not is_better(fastest, rate))
