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
    from collections.abc import Iterable, Iterator, Sequence

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
    if full.split(os.sep, 1)[0] == "**":  # a pattern of a command line may begin with it
        here = os.path.join(os.curdir, "")  # noqa: PTH118  text
        return in_order(path.removeprefix(here) for path in expand(here + full))
    above, crosses, below = f"{full}{os.sep}".partition(f"{os.sep}**{os.sep}")
    if crosses:
        below = below.rstrip(os.sep) or "*"
        found = _across(above, below)
        return in_order(_of_each_once(found) if os.sep in below else found)
    folder, pattern = os.path.split(full)
    if not has_magic(folder):
        folder = as_name(folder)
        return in_order(_matching(folder or os.curdir, pattern), os.path.join(folder, ""))  # noqa: PTH118  text
    return in_order(
        os.path.join(one, name)  # noqa: PTH118  text
        for one in _each_once(glob.iglob(os.path.join(folder, "")))  # noqa: PTH118, PTH207  keeps a glob's text
        for name in _matching(one, pattern)
    )


def _each_once(folders: "Iterable[str]") -> "Iterator[str]":
    """Yield each folder under one name: its own, or the first one if only links lead to it.

    Some network drives of Windows number no folders. There, each name is taken.
    """
    named: dict[tuple[int, int | str], list[str]] = {}
    for one in dict.fromkeys(map(os.path.normpath, folders)):
        with suppress(OSError):
            found = os.stat(one)  # noqa: PTH116  text
            named.setdefault((found.st_dev, found.st_ino or one), []).append(one)
    for names in named.values():
        yield names[0] if len(names) == 1 else min(names, key=lambda name: (_links_in(name), name))


def _links_in(path: str) -> int:
    """Return how many folders of a path are links."""
    ends = [at for at, sign in enumerate(path) if sign == os.sep and at]
    return sum(os.path.islink(path[:end]) for end in (*ends, len(path)))  # noqa: PTH114  text


def _of_each_once(paths: "Iterable[str]") -> "Iterator[str]":
    """Yield files without those that are found in another folder, behind a link, too."""
    files: dict[str, list[str]] = {}
    for path in dict.fromkeys(paths):
        files.setdefault(os.path.dirname(path), []).append(path)  # noqa: PTH120  text
    for folder in _each_once(files):
        yield from files[folder]


def _across(above: str, below: str) -> "Iterator[str]":
    """Yield what matches `below` in folders that match `above` and in all below them that are not hidden.

    Each folder is looked into once: links are followed when all folders were found that lie there by their own names.
    A link that leads back to a folder on the way, or above it, is not followed.
    """
    from heapq import heappop, heappush  # noqa: PLC0415  of those patterns that cross folders alone

    first = _each_once(glob.iglob(above or os.sep))  # noqa: PTH207
    waiting = [(folder, [os.path.join(os.path.realpath(folder), "")]) for folder in first]  # noqa: PTH118
    linked, seen = list[tuple[str, list[str]]](), set[str]()
    while waiting or linked:
        folder, way = waiting.pop() if waiting else heappop(linked)
        if way[-1] in seen:
            continue
        seen.add(way[-1])
        full = os.path.join(glob.escape(folder), below)  # noqa: PTH118  text
        if not os.path.isdir(as_name(full)):  # noqa: PTH112  of which a folder's files are no match
            yield from expand(full)
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.startswith(".") and is_folder_entry(entry):
                    is_link = entry.is_symlink()
                    real = os.path.join(os.path.realpath(entry.path) if is_link else way[-1] + entry.name, "")  # noqa: PTH118
                    if not is_link:
                        waiting.append((entry.path, [*way, real]))
                    elif not any(one.startswith(real) for one in way):
                        heappush(linked, (entry.path, [*way, real]))


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
    if not has_magic(pattern):  # one file, beside which there may be very many
        path = os.path.join(folder, as_name(pattern))  # noqa: PTH118  text
        if os.path.lexists(path) and not os.path.isdir(path):  # noqa: PTH112  as above
            yield as_name(pattern)
        return
    if not os.access(folder, os.R_OK):
        return
    hidden = pattern.startswith(".")
    is_like = re.compile(fnmatch.translate(os.path.normcase(pattern))).match
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:  # it may go meanwhile
        for entry in entries:
            name = entry.name
            if (hidden or not name.startswith(".")) and is_like(os.path.normcase(name)) and not is_folder_entry(entry):
                yield name


def is_folder_entry(entry: "os.DirEntry[str]") -> bool:
    """Return whether an entry of a folder is a folder, or a link to one."""
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself, say
        return False
