"""Looks for fed numbers that a provider cannot hold in the format that it computes in."""

import math
from collections.abc import Callable

import numpy as np

from ortdeploy.events import log
from ortdeploy.plan.narrowed import Narrowed
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.elements import widened


def log_narrowed(problem: str) -> None:
    """Log that an input has a number which may become another one."""
    log.warning("rows.narrowed", reason=problem)


class NarrowedCheck:
    """Checks what one input is fed."""

    def __init__(self, what: str, narrowed: Narrowed, tell: Callable[[str], None] = log_narrowed) -> None:
        """Take what the input is called; `tell` gets what is wrong with the first number that may become another."""
        self._what, self._narrowed, self._tell = what, narrowed, tell
        self._is_told = False

    def problem(self, array: Array) -> str | None:
        """Return what is wrong with a tensor […] that must not be fed."""
        if not self._narrowed.fails and self._is_told:
            return None
        value = _beyond(widened(array).reshape(-1), self._narrowed)
        if value is None:
            return None
        shown = str(value) if isinstance(value, int) else f"{value:.6g}"
        problem = f"{self._what} has {shown}. {self._narrowed.why}"
        if self._narrowed.fails:
            return problem
        self._is_told = True
        self._tell(problem)
        return None


def _beyond(numbers: Array, narrowed: Narrowed) -> float | int | None:
    """Return the first of some numbers [values] that its provider cannot hold; NaN and infinities are the same there.

    Whole numbers are compared as they are: float64 would round those at the ends of 64 bits.
    """
    low, high = narrowed.limits or (-math.inf, math.inf)
    with np.errstate(invalid="ignore"):
        if numbers.dtype.kind in "iu":
            found = (numbers < int(low)) | (numbers > int(high))
        elif not narrowed.smallest and numbers.size and low <= numbers.min() and numbers.max() <= high:
            return None
        else:
            size = np.abs(numbers)
            found = np.isfinite(size) & (size > high)
            if narrowed.smallest:
                found |= (size < narrowed.smallest) & (size != 0)
    place = int(found.argmax()) if found.size else 0
    return numbers[place].item() if found.size and found[place] else None
