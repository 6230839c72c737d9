"""The values that flags take: each function reads one from its text, and raises ArgumentTypeError in words."""

import argparse
from contextlib import suppress

TYPE_CHECKING = False  # typing takes as long to import as the rest of a command that has nothing to do
if TYPE_CHECKING:
    from collections.abc import Callable


def key_value(text: str) -> str:
    """Return `KEY=VALUE` as it is."""
    if not text.partition("=")[0] or "=" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return text


def _whole(called: str, least: int = 1, most: int = 2**53 - 1) -> "Callable[[str], int]":
    """Return what reads a whole number of some size; `called` says in words what it must be."""

    def read(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not {called}")
        return int(text)

    return read


version_number = _whole("a version, which is a whole number from 1 on")
row_count = _whole("a number of rows, at least 1")
worker_count = _whole("a number of workers from 1 to 10000", most=10_000)
run_count = _whole("a number of runs, at least 300", least=300)  # fewer tell nothing

LONGEST = 24 * 3600.0


def seconds(text: str) -> float:
    """Return seconds."""
    with suppress(ValueError):
        if 0 < float(text) <= LONGEST:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, up to {LONGEST:.0f}")


_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 24 * 3600.0}
_OLDEST = 10**6 * _UNITS["d"]


def _time(called: str, least: float, most: float) -> "Callable[[str], float]":
    """Return what reads a whole number of units of time, as seconds; `called` says in words what it must be."""

    def read(text: str) -> float:
        number = text.rstrip("dhimns")
        unit = _UNITS.get(text[len(number) :])
        if not (number.isascii() and number.isdecimal()) or unit is None or not least <= int(number) * unit <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not {called}")
        return int(number) * unit

    return read


interval = _time("a time from 1s to 24h, as in 30s, 5min or 1h", 1.0, LONGEST)
age = _time("an age, as in 90min, 12h or 2d", 1.0, _OLDEST)


def version_id(text: str) -> str:
    """Return a commit or a digest as it is."""
    wanted = text.removeprefix("sha256:")
    if len(wanted) < _SHORTEST_ID or set(wanted.lower()) - set("0123456789abcdef"):
        raise argparse.ArgumentTypeError(f"{text!r} is no commit and no digest: at least {_SHORTEST_ID} of 0-9 and a-f")
    return text


_SHORTEST_ID = 7


def renaming_pair(text: str) -> tuple[str, str]:
    """Return OLD and NEW of `OLD=NEW`."""
    old, equals, new = text.partition("=")
    if not old or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not OLD=NEW")
    return old, new
