"""Sizes in bytes, shares of a total and durations, as people write them: `512 MiB`, `5%`, `500ms`."""

import re


def allows_none(limit: int | str) -> bool:
    """Return whether a limit is zero, whatever the total is."""
    return float(str(limit).rstrip("%")) == 0


def allowed_count(limit: int | str, total: int) -> int:
    """Return how many of `total` a limit allows: a number, or a share written as "5%", rounded down."""
    return limit if isinstance(limit, int) else int(total * float(limit.rstrip("%")) / 100)


_OF_A_SHARE = 10


def rows_lately(limit: int | str, before: int) -> int:
    """Return over how many of the `before` rows of earlier runs a share may be kept too: as many as allow ten to fail.

    A run may have few rows, as one picture that somebody has brought, of which a share allows none to fail.
    """
    if isinstance(limit, int) or allows_none(limit):
        return 0
    return min(before, int(_OF_A_SHARE * 100 / float(limit.rstrip("%"))))


_UNITS = {"B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_SIZE = r"([0-9]+(?:\.[0-9]+)?) ?([KMG]i?B|B)\Z"


def parse_size(value: int | str) -> int | None:
    """Return a size in bytes; None for text that is not a number with a unit."""
    if isinstance(value, int):
        return value
    size = re.match(_SIZE, value)
    return int(float(size[1]) * _UNITS[size[2]]) if size else None


def format_size(size: float) -> str:
    """Return a size as people read it, in MiB: `0.3 MiB`, `512 MiB`."""
    mebibytes = size / _UNITS["MiB"]
    return f"{mebibytes:,.1f} MiB" if mebibytes < 10 else f"{mebibytes:,.0f} MiB"  # noqa: PLR2004  two digits are enough


_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def split_duration(value: float | str) -> tuple[str, float]:
    """Return a duration as its number and the seconds of its unit; a bare number is seconds."""
    text = str(value)
    number = text.rstrip("dhimns")
    return number, _SECONDS[text[len(number) :] or "s"]


def parse_duration(value: float | str) -> float:
    """Return the seconds of a duration that is written with its unit; a bare number is seconds."""
    number, seconds = split_duration(value)
    return float(number) * seconds
