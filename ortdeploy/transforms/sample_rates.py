"""The sample rates of recordings, which some steps need of each row."""

from collections.abc import Mapping
from typing import Any

RATE = "rate"
"""The column of a source with the sample rate of each row."""

RESAMPLE = "resample"
"""The step that brings recordings to one rate."""


def needs_rate(step: str, options: Mapping[str, Any]) -> bool:
    """Return whether a prepare step needs the sample rate of each row's file."""
    return step == RESAMPLE and "from" not in options
