"""Recognises faults of the machine in any command: no files, threads, memory, disk or library. These are no bugs."""

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
"""What a machine may lack or refuse whatever a command does, with what to do about it."""

_UNLOADABLE = ("shared object", "DLL load failed", "Library not loaded")
"""How Linux, Windows and macOS say that a package's library needs memory, or another library, that is not there."""


def fault_of_the_machine(error: Exception) -> str | None:
    """Return what the machine lacks, where that is why a command ended; None for what is our bug."""
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
