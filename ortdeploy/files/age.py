"""How long ago something was written, if clocks can tell.

A board without a battery begins in 1970, or when its system was built, until the network sets its clock. What it writes
before that seems to be from long ago as soon as the clock is right; and after a clock that was ahead, from the future.
"""

_FIRST = 1_735_689_600
"""Seconds from 1970 to the year 2025, before which there was no ortdeploy: what it has written is not older."""


def age_of(written: float, now: float) -> float | None:
    """Return how many seconds ago ortdeploy has written something; None if the clock was wrong then, or is now.

    While the clock still shows such a time, times before it were shown in the same way, so they count.
    """
    return None if written > now or written < _FIRST <= now else now - written
