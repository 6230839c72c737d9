"""Measures how much memory this process takes and may take, and gives freed memory back."""

import ctypes
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

_KIB = 1024
_CGROUP = Path("/sys/fs/cgroup")
_LIMIT_FILES = ("memory.max", "memory.limit_in_bytes")
"""Of control groups of version 2 and 1."""


def resident_memory() -> int | None:
    """Return the resident set of this process in bytes; None if the system does not tell."""
    return _kib_of("/proc/self/status", "VmRSS:")


WEIGHTS = "weights.bin"
"""The name of the file that sessions of the same kept model map together."""


class _Held:
    """Knows how much of the resident set is counted more than once."""

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
    """Return the resident set of this process with weights that several sessions map counted once, in bytes.

    What is counted twice is looked up again after a second, or when the resident set has grown.
    """
    return _held.bytes()


def mapped_twice() -> int:
    """Return the bytes of weights that are resident in this process by more than one mapping, beyond the first."""
    with suppress(OSError):
        places = [
            line.split() for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(f"/{WEIGHTS}")
        ]
        if len({(words[2], words[4]) for words in places}) < len(places):
            return _counted_twice(Path("/proc/self/smaps").read_text().splitlines())
    return 0


def _counted_twice(lines: Sequence[str]) -> int:
    """Add up what mappings of the same place of a weights file hold, beyond the largest of them.

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
    """Return this process's private writable memory in bytes, resident or not: what RLIMIT_DATA bounds."""
    return _kib_of("/proc/self/status", "VmData:")


def memory_of_the_group() -> int | None:
    """Return the smallest memory limit of this process's control group and those above it, in bytes; None without one.

    Version 1 gives a huge number where there is no limit.
    """
    limits = [limit for limit in map(_limit_in, _group_folders()) if limit is not None and limit < 1 << 60]
    return min(limits, default=None)


def _limit_in(folder: Path) -> int | None:
    for name in _LIMIT_FILES:
        with suppress(OSError):
            text = (folder / name).read_text(encoding="ascii").strip()
            return int(text) if text.isdecimal() else None
    return None


@cache
def _group_folders() -> tuple[Path, ...]:
    """Return the folders of this process's control groups, up to the root: `0::/a/b`, or `5:memory:/a` in version 1."""
    folders = [_CGROUP, _CGROUP / "memory"]
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = (*line.split(":", 2), "", "")[:3]
            root = _CGROUP if not controllers else _CGROUP / "memory" if "memory" in controllers.split(",") else None
            if root is not None:
                own = root / path.lstrip("/")
                folders += [own, *(parent for parent in own.parents if parent.is_relative_to(root))]
    return tuple(dict.fromkeys(folders))


def trim_memory() -> None:
    """Give freed memory back to the system where the C library is glibc; elsewhere nothing happens."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> "ctypes._NamedFuncPointer | None":
    with suppress(OSError, AttributeError, TypeError):
        return ctypes.CDLL(None).malloc_trim
    return None


def available_memory() -> int | None:
    """Return how much memory new processes could take without swapping, in bytes; None if nobody tells."""
    return _kib_of("/proc/meminfo", "MemAvailable:")


def _kib_of(path: str, name: str) -> int | None:
    """Return a figure that Linux gives in KiB, in bytes."""
    try:
        text = Path(path).read_text(encoding="ascii")
        return int(text.partition(name)[2].split()[0]) * _KIB
    except (OSError, ValueError, IndexError):
        return None


def private_memory() -> int | None:
    """Return the resident memory of this process that is in no file, in bytes; Linux tells it."""
    return _kib_of("/proc/self/status", "RssAnon:")


def proportional_memory() -> int | None:
    """Return this process's memory with pages that it shares counted in parts (PSS), in bytes; Linux tells it."""
    return _kib_of("/proc/self/smaps_rollup", "\nPss:")


def memory_now() -> dict[str, int | None]:
    """Return what this process takes at this moment, as reports have it: resident, proportional, the peak so far."""
    return {
        "resident_bytes": resident_memory(),
        "proportional_bytes": proportional_memory(),
        "peak_bytes": peak_memory(),
    }


def process_usage() -> dict[str, float]:
    """Return what this process has used so far: seconds of processors, page faults, switches; nothing on Windows."""
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
    """Return the largest resident set of this process so far in bytes; None if the system does not tell.

    Linux tells it per address space in /proc; getrusage there also counts the parent from which a process was forked.
    """
    peak = _kib_of("/proc/self/status", "VmHWM:")
    return _peak_of_getrusage() if peak is None else peak


def _peak_of_getrusage() -> int | None:
    try:
        import resource  # noqa: PLC0415  not on Windows
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * _KIB
