"""How much memory this process takes."""

import sys
from pathlib import Path

_KIB = 1024


def peak_memory() -> int | None:
    """Return the largest resident set of this process so far in bytes; None where the system does not tell.

    Linux tells it per address space in /proc; getrusage there also counts the parent from which a process was forked.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return int(status.partition("VmHWM:")[2].split()[0]) * _KIB
    except (OSError, ValueError, IndexError):
        return _peak_of_getrusage()


def _peak_of_getrusage() -> int | None:
    try:
        import resource  # noqa: PLC0415  not on Windows
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * _KIB
