"""Recognises faults of the machine in any command: no files, threads, memory, disk or library. They are no bugs."""

import errno
import os

_LACKING = {
    errno.EAGAIN: "; no process can be started, see ulimit -u, TasksMax and pids.max",
    errno.EMFILE: "; ulimit -n says how many, and raises it",
    errno.ENFILE: "",
    errno.ENOSPC: "",
    errno.EDQUOT: "",
    errno.EFBIG: "; ulimit -f says how large",
    errno.EROFS: "",
    errno.EIO: "",
    errno.ENOMEM: "",
}
"""Faults of the machine that any command may meet, with the remedy for each."""

_UNLOADABLE = ("shared object", "DLL load failed", "Library not loaded")
"""Messages of Linux, Windows and macOS when a package's library lacks memory or another library."""


def fault_of_the_machine(error: Exception) -> str | None:
    """Return what the machine lacks if that ended a command; None for a bug of ours."""
    try:
        os.getcwd()  # noqa: PTH109  pathlib takes longer to import
    except OSError:
        return "the current folder is gone; change into one that is there"
    if isinstance(error, OSError) and error.errno in _LACKING:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}{_LACKING[error.errno]}"
    if isinstance(error, MemoryError):
        return "memory ran out"
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return "no thread can be started, see ulimit -u, TasksMax and pids.max"
    if isinstance(error, ImportError) and any(words in str(error) for words in _UNLOADABLE):
        return f"a library cannot be loaded: {error}"
    return None
