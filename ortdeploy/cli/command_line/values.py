"""The values that flags take: each function reads one from its text, and raises ArgumentTypeError in words."""

import argparse
from contextlib import suppress


def key_value(text: str) -> str:
    """Return `KEY=VALUE` as it is."""
    if not text.partition("=")[0] or "=" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return text


def version_number(text: str) -> int:
    """Return the number of a version, from 1 on."""
    if not text.isdecimal() or not 1 <= int(text) < 2**53:
        raise argparse.ArgumentTypeError(f"{text!r} is not a version, which is a whole number from 1 on")
    return int(text)


def row_count(text: str) -> int:
    """Return a number of rows, at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rows, at least 1")
    return int(text)


def seconds(text: str) -> float:
    """Return seconds."""
    with suppress(ValueError):
        if 0 < float(text) <= LONGEST:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, up to {LONGEST:.0f}")


def worker_count(text: str) -> int:
    """Return a number of workers."""
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_WORKERS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of workers from 1 to {_MOST_WORKERS}")
    return int(text)


_MOST_WORKERS = 10_000


def run_count(text: str) -> int:
    """Return a number of runs that tell something."""
    if not text.isdecimal() or int(text) < 300:  # noqa: PLR2004  fewer runs tell nothing
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of runs, at least 300")
    return int(text)


_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}


def interval(text: str) -> float:
    """Return seconds, at least one."""
    number = text.rstrip("himns")
    unit = _SECONDS.get(text[len(number) :])
    if not (number.isascii() and number.isdecimal()) or unit is None or not 1 <= int(number) * unit <= LONGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time from 1s to 24h, as in 30s, 5min or 1h")
    return int(number) * unit


LONGEST = 24 * 3600.0


def version_id(text: str) -> str:
    """Return a commit or a digest as it is."""
    wanted = text.removeprefix("sha256:")
    if len(wanted) < _SHORTEST_ID or set(wanted.lower()) - set("0123456789abcdef"):
        raise argparse.ArgumentTypeError(f"{text!r} is no commit and no digest: at least {_SHORTEST_ID} of 0-9 and a-f")
    return text


_SHORTEST_ID = 7


def age(text: str) -> float:
    """Return seconds."""
    number = text.rstrip("dhimns")
    unit = {**_SECONDS, "d": 24 * 3600.0}.get(text[len(number) :])
    if not (number.isascii() and number.isdecimal()) or unit is None or len(number) > _MOST_DIGITS or not int(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not an age, as in 90min, 12h or 2d")
    return int(number) * unit


_MOST_DIGITS = 6


def renaming_pair(text: str) -> tuple[str, str]:
    """Return OLD and NEW of `OLD=NEW`."""
    old, equals, new = text.partition("=")
    if not old or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not OLD=NEW")
    return old, new
