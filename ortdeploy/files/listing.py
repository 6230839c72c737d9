"""Lists the local files that a path, a folder or a glob names."""

import fnmatch
import glob
import os
import re
from contextlib import suppress
from operator import attrgetter

from ortdeploy.files.compact_list import in_order

TYPE_CHECKING = False  # typing takes as long to import as the rest of a command that has nothing to do
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MAGIC = "*?["
_ESCAPED = re.compile(r"\[([*?[])\]")


def in_full(folder: str, pattern: str) -> str:
    """Return a pattern of a manifest in full. Signs of patterns in the path of its folder mean themselves."""
    return os.path.normpath(os.path.join(glob.escape(folder), pattern))  # noqa: PTH118  keeps a glob's text as it is


def has_magic(full: str) -> bool:
    """Return whether a pattern may match several names: it has signs other than those that `in_full` has escaped."""
    return any(sign in _ESCAPED.sub("", full) for sign in _MAGIC)


def as_name(full: str) -> str:
    """Return a pattern as the name that it is if all signs mean themselves."""
    return _ESCAPED.sub(r"\1", full)


def expand(full: str) -> "Sequence[str]":
    """Return what a path, a folder or a glob names, without folders, sorted; nothing if a folder may not be read.

    That may be a link that leads nowhere, or a pipe. Whoever looks at it says that it is no file.
    """
    name = full if os.path.lexists(full) else as_name(full)
    if os.path.isdir(name):  # noqa: PTH112  never raises, as the others do not
        if not os.access(name, os.R_OK | os.X_OK):
            return []
        names = (
            entry.name for entry in os.scandir(name) if not is_folder_entry(entry) and not entry.name.startswith(".")
        )
        return in_order(names, os.path.join(name, ""))  # noqa: PTH118  text
    if os.path.lexists(name) or not has_magic(full):  # a name may hold a bracket
        return [name] if os.path.lexists(name) else []
    above, crosses, below = f"{full}{os.sep}".partition(f"{os.sep}**{os.sep}")
    if crosses:
        return in_order(_across(above, below.rstrip(os.sep) or "*"))
    folder, pattern = os.path.split(full)
    fixed = as_name(folder)
    if has_magic(folder) or not os.path.isdir(fixed):  # noqa: PTH112
        return in_order(path for path in glob.iglob(full) if not os.path.isdir(path))  # noqa: PTH112, PTH207  keeps a glob's text
    return in_order(_matching(fixed, pattern), os.path.join(fixed, ""))  # noqa: PTH118  text


def _across(above: str, below: str) -> "Iterator[str]":
    """Yield what matches `below` in folders that match `above` and in all below them that are not hidden.

    A link that leads back to a folder on the way, or above it, is not followed: all there would be found forty times.
    """
    waiting = [(folder, [os.path.join(os.path.realpath(folder), "")]) for folder in glob.iglob(above or os.sep)]  # noqa: PTH118, PTH207
    while waiting:
        folder, way = waiting.pop()
        full = os.path.join(glob.escape(folder), below)  # noqa: PTH118  text
        if not os.path.isdir(as_name(full)):  # noqa: PTH112  of which a folder's files are no match
            yield from expand(full)
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.startswith(".") and is_folder_entry(entry):
                    is_link = entry.is_symlink()
                    real = os.path.join(os.path.realpath(entry.path) if is_link else way[-1] + entry.name, "")  # noqa: PTH118
                    if not (is_link and any(one.startswith(real) for one in way)):
                        waiting.append((entry.path, [*way, real]))


def links_below(folder: str, skipped: str = "") -> "Iterator[str]":
    """Yield the links in a folder, at any depth; one subfolder may be skipped. The listings say what is a link."""
    below = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in sorted(entries, key=attrgetter("name")):
            if entry.is_symlink():
                yield entry.path
            elif entry.name != skipped and entry.is_dir(follow_symlinks=False):
                below.append(entry.path)
    for one in below:
        yield from links_below(one)


def folders_like(full: str) -> "list[str]":
    """Return the folders that match a glob whose only pattern is in its last part."""
    folder, pattern = os.path.split(full)
    folder = as_name(folder)
    if not os.access(folder, os.R_OK):
        return []
    names = [entry.name for entry in os.scandir(folder) if is_folder_entry(entry)]
    return sorted(os.path.join(folder, name) for name in fnmatch.filter(names, pattern))  # noqa: PTH118  text


def _matching(folder: str, pattern: str) -> "Iterator[str]":
    """Yield the names of the files of one folder that match, as `glob` would, with a hundredth of its system calls."""
    if not os.access(folder, os.R_OK):
        return
    hidden = pattern.startswith(".")
    is_like = re.compile(fnmatch.translate(os.path.normcase(pattern))).match
    for entry in os.scandir(folder):
        name = entry.name
        if (hidden or not name.startswith(".")) and is_like(os.path.normcase(name)) and not is_folder_entry(entry):
            yield name


def is_folder_entry(entry: "os.DirEntry[str]") -> bool:
    """Return whether an entry of a folder is a folder, or a link to one."""
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself, say
        return False
