"""How much memory this process takes."""

import sys
from pathlib import Path

_KIB = 1024


def resident_memory() -> int | None:
    """Return the resident set of this process in bytes; None where the system does not tell."""
    return _kib_of("/proc/self/status", "VmRSS:")


def available_memory() -> int | None:
    """Return how much memory new processes could take without swapping, in bytes; None where nobody tells."""
    return _kib_of("/proc/meminfo", "MemAvailable:")


def _kib_of(path: str, name: str) -> int | None:
    """Return a figure that Linux gives in KiB, in bytes."""
    try:
        text = Path(path).read_text(encoding="ascii")
        return int(text.partition(name)[2].split()[0]) * _KIB
    except (OSError, ValueError, IndexError):
        return None


def peak_memory() -> int | None:
    """Return the largest resident set of this process so far in bytes; None where the system does not tell.

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
