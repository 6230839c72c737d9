"""Which files an input names, and a digest that changes when one of them does."""

import glob
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from ortdeploy.diagnostics import OrtdeployError

_MAGIC = "*?["


def list_files(folder: str, patterns: Sequence[str]) -> tuple[str, ...]:
    """Return the files that paths, folders and globs name, each once; sorted within each pattern."""
    found: dict[str, None] = {}
    for pattern in patterns:
        full = os.path.normpath(os.path.join(folder, pattern))  # noqa: PTH118  keeps a glob's text as it is
        found.update(dict.fromkeys(_expand(full)))
    return tuple(found)


def _expand(full: str) -> list[str]:
    if os.path.isdir(full):  # noqa: PTH112  see list_files
        return sorted(entry.path for entry in os.scandir(full) if entry.is_file() and not entry.name.startswith("."))
    if os.path.isfile(full) or not any(sign in full for sign in _MAGIC):  # noqa: PTH113  a name may hold a bracket
        return [full] if os.path.isfile(full) else []  # noqa: PTH113
    return sorted(path for path in glob.glob(full, recursive=True) if os.path.isfile(path))  # noqa: PTH113, PTH207


def files_digest(files: Sequence[str], folder: str) -> str:
    """Return a digest of names, sizes and modification times; contents are not read, inputs can be terabytes."""
    digest = hashlib.sha256()
    for path in files:
        try:
            stat = os.stat(path)  # noqa: PTH116  a hundred thousand of them
        except OSError as error:
            raise OrtdeployError(f"input file {path} cannot be read: {error.strerror}") from error
        entry = f"{os.path.relpath(path, folder)}\0{stat.st_size}\0{stat.st_mtime_ns}\n"
        digest.update(os.fsencode(entry))  # a file's name may be any bytes
    return digest.hexdigest()


def outside(path: str, roots: Sequence[str]) -> bool:
    """Whether a path leads out of every root once links are followed."""
    real = Path(os.path.realpath(path))  # unlike Path.resolve, no exception for a link to itself
    return not any(real.is_relative_to(os.path.realpath(root)) for root in roots)


def shown(path: str, folder: str) -> str:
    """Return a path as the user knows it: relative to the manifest, with forward slashes."""
    return os.path.relpath(path, folder).replace(os.sep, "/")
