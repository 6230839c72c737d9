"""Waiting for what other processes do."""

import time
from collections.abc import Callable
from typing import Any

_SECONDS = 120.0


def wait_for(condition: Callable[[], Any]) -> Any:
    """Return what a condition gives once it holds."""
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen")
