"""Measures how much memory this process uses and may use, and gives freed memory back."""

import ctypes
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from ortdeploy.process.control_group import group_folders

_KIB = 1024
_LIMIT_FILES = ("memory.max", "memory.limit_in_bytes")
"""Files with the memory limit of a control group, in version 2 and version 1."""
_STATUS = "/proc/self/status"


def resident_memory() -> int | None:
    """Return the resident set of this process in bytes; None if the system does not report it."""
    return _kib_of(_STATUS, "VmRSS:")


WEIGHTS = "weights.bin"
"""The name of the file that sessions of the same kept model map together."""


class _Held:
    """Remembers for a second how much of the resident set is counted more than once."""

    SECONDS_BETWEEN = 1.0  # asking takes the kernel a walk over all pages, some milliseconds
    GROWN = 1.05

    def __init__(self) -> None:
        self._looked = float("-inf")
        self._twice = self._resident = 0

    def bytes(self) -> int | None:
        resident = resident_memory()
        if resident is None:
            return None
        if time.monotonic() - self._looked > self.SECONDS_BETWEEN or resident > self._resident * self.GROWN:
            self._twice, self._resident, self._looked = mapped_twice(), resident, time.monotonic()
        return max(resident - self._twice, 0)


_held = _Held()


def held_memory() -> int | None:
    """Return the resident set of this process in bytes, with weights that several sessions map counted once.

    The double count is measured again after a second, or when the resident set has grown.
    """
    return _held.bytes()


def mapped_twice() -> int:
    """Return the resident bytes of weights in all mappings of this process beyond the first of each."""
    with suppress(OSError):
        places = [
            line.split() for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(f"/{WEIGHTS}")
        ]
        if len({(words[2], words[4]) for words in places}) < len(places):
            return _counted_twice(Path("/proc/self/smaps").read_text().splitlines())
    return 0


def _counted_twice(lines: Sequence[str]) -> int:
    """Add up the resident bytes of mappings of the same place in a weights file, without the largest mapping of each.

    A mapping's first line is `55d0-55d4 r--s 00001000 fe:00 1234 /path`; the others have a name and a colon.
    """
    sizes: dict[tuple[str, str], list[int]] = {}
    place: tuple[str, str] | None = None
    for line in lines:
        if line.startswith("Rss:"):
            if place is not None:
                sizes.setdefault(place, []).append(int(line.split()[1]) * _KIB)
        elif not line.partition(" ")[0].endswith(":"):
            words = line.split()
            place = (words[2], words[4]) if line.endswith(f"/{WEIGHTS}") else None
    return sum(sum(found) - max(found) for found in sizes.values())


def allocated_memory() -> int | None:
    """Return this process's private writable memory in bytes, resident or not, which RLIMIT_DATA limits."""
    return _kib_of(_STATUS, "VmData:")


def memory_of_the_group() -> int | None:
    """Return the smallest memory limit of this process's control group and its parents, in bytes; None without one.

    Version 1 reports a huge number if there is no limit.
    """
    limits = [limit for limit in map(_limit_in, group_folders("memory")) if limit is not None and limit < 1 << 60]
    return min(limits, default=None)


def _limit_in(folder: Path) -> int | None:
    for name in _LIMIT_FILES:
        with suppress(OSError):
            text = (folder / name).read_text(encoding="utf-8").strip()
            return int(text) if text.isdecimal() else None
    return None


def trim_memory() -> None:
    """Return freed heap to the system (glibc only; otherwise a no-op)."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> "ctypes._NamedFuncPointer | None":
    with suppress(OSError, AttributeError, TypeError):
        return ctypes.CDLL(None).malloc_trim
    return None


def available_memory() -> int | None:
    """Return how many bytes new processes could take without swapping; None if the system does not report it."""
    return _kib_of("/proc/meminfo", "MemAvailable:")


def _kib_of(path: str, name: str) -> int | None:
    """Return in bytes a value that a file of Linux has in KiB."""
    return _kib_in(_text_of(path), name)


def _text_of(path: str) -> str:
    with suppress(OSError, ValueError):
        return Path(path).read_text(encoding="utf-8")
    return ""


def _kib_in(text: str, name: str) -> int | None:
    try:
        return int(text.partition(name)[2].split()[0]) * _KIB
    except (ValueError, IndexError):
        return None


def private_memory() -> int | None:
    """Return the resident memory of this process that maps no file, in bytes; None except on Linux."""
    return _kib_of(_STATUS, "RssAnon:")


def mapped_memory() -> int:
    """Return the resident memory of this process that maps files, in bytes; 0 where the system does not report it."""
    text = _text_of(_STATUS)
    return (_kib_in(text, "VmRSS:") or 0) - (_kib_in(text, "RssAnon:") or 0)


def proportional_memory() -> int | None:
    """Return the memory of this process in bytes, with its part of shared pages (PSS); None except on Linux.

    The kernel walks over all pages for it, which takes milliseconds.
    """
    return _kib_of("/proc/self/smaps_rollup", "\nPss:")


def memory_now() -> dict[str, int | None]:
    """Return the memory of this process for reports, in bytes: resident and peak, of one moment on Linux."""
    text = _text_of(_STATUS)
    return {"resident_bytes": _kib_in(text, "VmRSS:"), "peak_bytes": _peak_in(text)}


def memory_in_full() -> dict[str, int | None]:
    """Return what `memory_now` does, and the proportional memory."""
    return {**memory_now(), "proportional_bytes": proportional_memory()}


def process_usage() -> dict[str, float]:
    """Return what this process has used so far: processor seconds, page faults, context switches; empty on Windows."""
    try:
        import resource  # noqa: PLC0415  not on Windows
    except ImportError:
        return {}
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "cpu_seconds_user": usage.ru_utime,
        "cpu_seconds_system": usage.ru_stime,
        "minor_faults": usage.ru_minflt,
        "major_faults": usage.ru_majflt,
        "voluntary_switches": usage.ru_nvcsw,
        "involuntary_switches": usage.ru_nivcsw,
    }


def peak_memory() -> int | None:
    """Return the largest resident set of this process so far in bytes; None if the system does not report it.

    On Linux it comes from /proc, because getrusage also counts the parent from which a process was forked.
    """
    return _peak_in(_text_of(_STATUS))


def _peak_in(text: str) -> int | None:
    peak = _kib_in(text, "VmHWM:")
    return _peak_of_getrusage() if peak is None else peak


def _peak_of_getrusage() -> int | None:
    try:
        import resource  # noqa: PLC0415  not on Windows
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * _KIB
