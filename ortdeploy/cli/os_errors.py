"""Recognises faults of the machine in any command: no files, threads, memory, disk or library. They are no bugs."""

import errno
import os
import sys

_LACKING = {
    errno.EAGAIN: "; no process can be started, see ulimit -u, TasksMax and pids.max",
    errno.EMFILE: "; ulimit -n says how many, and raises it",
    errno.ENFILE: "",
    errno.ENOSPC: None,
    errno.EDQUOT: None,
    errno.EFBIG: "; ulimit -f says how large",
    errno.EROFS: None,
    errno.EIO: None,
    errno.ENOMEM: "",
}
"""Faults of the machine that any command may meet, with the remedy for each; None: the disk tells it."""

_UNLOADABLE = ("shared object", "DLL load failed", "Library not loaded", "GLIBC", "undefined symbol", "ELF")
"""Messages of Linux, Windows and macOS when a package's library lacks memory or another library, or fits no system."""

_PACKAGES = {"google": "protobuf", "yaml": "pyyaml", "ml_dtypes": "ml-dtypes", "PIL": "pillow"}
"""What to install for modules that are called otherwise."""
_INSTEAD = {"onnxruntime": ", or onnxruntime-gpu for an NVIDIA GPU"}


def fault_of_the_machine(error: Exception) -> str | None:
    """Return what the machine lacks if that ended a command; None for a bug of ours."""
    try:
        os.getcwd()  # noqa: PTH109  pathlib takes longer to import
    except OSError:
        return "the current folder is gone; change into one that is there"
    if isinstance(error, OSError) and error.errno in _LACKING:
        where, todo = f"{error.filename}: " if error.filename else "", _LACKING[error.errno]
        if todo is None:
            from pathlib import Path  # noqa: PLC0415  only where a disk fails

            from ortdeploy.files.disk import advice_on_disk  # noqa: PLC0415  as above

            todo = advice_on_disk(error.errno, Path(str(error.filename or os.curdir)))
        return f"{where}{error.strerror}{todo}"
    if isinstance(error, MemoryError):
        return "memory ran out"
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return "no thread can be started, see ulimit -u, TasksMax and pids.max"
    if isinstance(error, ImportError):
        return _of_the_installation(error)
    if isinstance(error, UnicodeEncodeError) and error.encoding == sys.getfilesystemencoding() != "utf-8":
        lacking = ascii(error.object[error.start : error.end])
        return f"Python has {error.encoding} for names of files here, which has no {lacking}; set LC_ALL=C.UTF-8"
    return None


def _of_the_installation(error: ImportError) -> str | None:
    """Return which package is missing or broken; None if the module is one of ours."""
    root = (error.name or "").partition(".")[0]
    if root == "ortdeploy":
        return None
    package = _PACKAGES.get(root, root)
    if isinstance(error, ModuleNotFoundError) and root:
        others = _INSTEAD.get(package, "")
        return f"{package} is not installed: pip install {package}{others}"
    if any(words in str(error) for words in _UNLOADABLE):
        return f"a library cannot be loaded: {error}"
    again = f"; pip install --force-reinstall {package} brings it anew" if package else ""
    return f"the package {package or 'of a module'} cannot be used as it is installed: {error}{again}"
