"""Times of tables that are counted in nanoseconds, of which Python's own keep only the microseconds."""

from datetime import datetime, time, timedelta
from typing import Any

from msgspec import Struct


class Nanoseconds(Struct, frozen=True):
    """A time stamp, a time of day or a duration: `count` in its Arrow type `kind`, and Python's value, rounded down.

    As text it is what Python shows, with three digits more if they are not zeros.
    """

    count: int
    kind: Any
    rounded: datetime | time | timedelta

    def __str__(self) -> str:
        """Return it as text."""
        rest = self.count % 1000
        if not rest:
            return str(self.rounded)
        text = str(self.rounded)
        if "." not in text:  # Python leaves out microseconds that are zero
            end = len("0000-00-00 00:00:00") if isinstance(self.rounded, datetime) else len(text)
            text = f"{text[:end]}.000000{text[end:]}"
        end = text.index(".") + len(".000000")
        return f"{text[:end]}{rest:03d}{text[end:]}"
