"""Existence checks that return False, and not OSError, for a name that no file can have.

Path.exists, is_file and is_dir raise OSError for a name that is too long (until Python 3.14); os.path's do not.
"""

import os
from itertools import chain, count
from pathlib import Path

STATE_DIR = ".ortdeploy"
"""The folder beside a manifest in which its ledger lies, and what is remembered of it."""


def is_there(path: Path | str) -> bool:
    """Return whether anything has this name."""
    return os.path.exists(path)  # noqa: PTH110  see above


def is_file(path: Path | str) -> bool:
    """Return whether a file has this name."""
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: Path | str) -> bool:
    """Return whether a folder has this name."""
    return os.path.isdir(path)  # noqa: PTH112


def name_aside(folder: Path, started: str) -> Path:
    """Return the name under which an old output is kept: its own with the time when it was begun, and a free one."""
    stamp = started.partition("+")[0].replace(":", "-")
    names = (f"{folder.name}.{stamp}{suffix}" for suffix in chain([""], (f".{n}" for n in count(2))))
    return next(path for path in map(folder.with_name, names) if not is_there(path))
