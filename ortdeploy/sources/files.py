"""Lists the files that an input names, looks at their states, and computes a digest of the states."""

import glob
import hashlib
import os
import stat
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import overload

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import FileState, FileStates
from ortdeploy.files.compact_list import Names, in_blocks
from ortdeploy.files.gate import PathEscapesError, PathGuard
from ortdeploy.files.listing import as_name, expand, has_magic, in_full
from ortdeploy.files.names import MARK, is_file, is_folder, relative
from ortdeploy.files.urls import Addresses, is_url, parse_url

_NO_NAMES = frozenset({"", ".", ".."})
_BETWEEN = "\0"
"""What lies between names that are one text; no name holds it."""
_ALONE = 16
"""Objects that are asked for one by one."""
_TOO_MUCH = 2**63
"""The least number that has no room in 64 bits with a sign."""
_OF_THE_SYSTEM = "lost+found"
"""A folder of file systems, which nobody but root reads and nobody fills."""


def list_files(folder: str, patterns: Sequence[str] = ()) -> Sequence[str]:
    """Return the files that paths, folders and globs name, each once; sorted within each pattern.

    URLs are in their shown form, without users, passwords and queries; `Addresses` of the patterns has those.
    """
    if len(patterns) == 1 and not is_url(patterns[0]) and "**" not in patterns[0]:  # no file is named twice
        return _list_local(folder, patterns[0])
    found: dict[str, None] = {}
    addresses = Addresses.of(patterns)
    for pattern in patterns:
        if is_url(pattern):
            from ortdeploy.files.object_store import list_urls  # noqa: PLC0415  only for stores

            own, listed = parse_url(pattern).full, list_urls(pattern)
            found.update((addresses.shown(pattern) if url == own else parse_url(url).shown, None) for url in listed)
            continue
        found.update(dict.fromkeys(_list_local(folder, pattern)))
    return tuple(found)


def _list_local(folder: str, pattern: str) -> Sequence[str]:
    full = in_full(folder, pattern)
    expanded = expand(full)
    if not expanded:
        _check_readable(full)
    _check_folders(full)
    return expanded if isinstance(expanded, Names) else tuple(expanded)


class InputPaths(Sequence[str]):
    """The full paths of files, made of their states when they are asked for."""

    def __init__(self, folder: str, states: Sequence[FileState]) -> None:
        self._folder = folder
        self._states = states

    @property
    def states(self) -> Sequence[FileState]:
        """The states of which they are made."""
        return self._states

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[str]:
        return (full_path(self._folder, state[0]) for state in self._states)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> "InputPaths": ...
    def __getitem__(self, index: int | slice) -> "str | InputPaths":
        """Return one of them, or some."""
        if isinstance(index, slice):
            return InputPaths(self._folder, self._states[index])
        return full_path(self._folder, self._states[index].path)

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, Sequence) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))


def _check_folders(full: str) -> None:
    """Raise OrtdeployError if a folder that a glob names cannot be looked into: it would be passed over."""
    parts = Path(full).parts
    magic = [index for index, part in enumerate(parts) if has_magic(part)]
    if not magic or is_file(as_name(full)):
        return
    for index in range(magic[0], len(parts)):
        in_front = os.path.join(*parts[: index + (parts[index] == "**")], "")  # noqa: PTH118  keeps a glob's text as it is
        for folder in glob.iglob(in_front, recursive=True):  # noqa: PTH207  as above
            name = os.path.normpath(folder)
            if Path(name).name != _OF_THE_SYSTEM and not os.access(name, os.R_OK | os.X_OK):
                raise _unreadable(name)


def _unreadable(folder: str) -> OrtdeployError:
    return OrtdeployError(f"the folder {folder} cannot be read by this user; allow it, or name another place")


def _check_readable(full: str) -> None:
    """Raise OrtdeployError if a pattern names nothing because a folder in front of it cannot be looked into."""
    fixed = as_name(full).split("*", maxsplit=1)[0].split("?", maxsplit=1)[0]
    for folder in (os.path.normpath(fixed), *map(str, Path(fixed).parents)):
        if is_folder(folder):
            if not os.access(folder, os.R_OK | os.X_OK):
                raise _unreadable(folder)
            return


def file_states(
    files: Sequence[str], folder: str, patterns: Sequence[str] = (), guard: PathGuard | None = None
) -> FileStates:
    """Return size and time of files, without reading them: inputs can be terabytes. Raises OrtdeployError.

    `patterns` are the paths of the input, as the manifest has them. Raises PathEscapesError if one leads outside.
    """
    looks = _Looks(patterns, files, folder, guard)
    return FileStates.pack_columns((_shown_names(some, folder), *looks.states(some)) for some in in_blocks(files))


def find_changed(
    states: Sequence[FileState], folder: str, patterns: Sequence[str] = (), guard: PathGuard | None = None
) -> str | None:
    """Return the first file that is not what it was. Raises OrtdeployError if one cannot be looked at.

    Raises PathEscapesError if one leads outside.
    """
    looks = _Looks(patterns, InputPaths(folder, states), folder, guard)
    names: str
    for names, sizes, times in FileStates.of(states).by_column():
        paths = _full_paths(names, folder)
        if looks.at_once(paths) == ([*sizes], [*times]):
            continue
        now = looks.one_by_one(paths)
        for name, found, *state in zip(names.split(_BETWEEN), now, sizes, times, strict=True):
            if found != tuple(state):
                return name
    return None


class _Looked:
    """States of the objects of an input: of a few each is asked for, of many their listings are."""

    def __init__(self, patterns: Sequence[str], files: Iterable[str]) -> None:
        """Take the paths of the input as the manifest has them, and its files."""
        self._addresses = Addresses.of(patterns)
        self._patterns = list(filter(is_url, patterns))
        objects = filter(is_url, files) if any(map(is_url, patterns)) else iter(())
        is_long = next(islice(objects, _ALONE, None), None) is not None
        self._listed: dict[str, tuple[int, int]] | None = None if is_long else {}

    def state(self, path: str) -> tuple[int, int]:
        """Return size and version of an object. Raises OrtdeployError."""
        from ortdeploy.files.object_store import is_web, list_states, state_of  # noqa: PLC0415  only for stores

        if self._listed is None:
            own = (one for one in self._patterns if not is_web(parse_url(one)))
            listed = (one for pattern in own for one in list_states(pattern))
            self._listed = {parse_url(url).shown: state for url, state in listed}
        return self._listed.get(path) or state_of(self._addresses.full(path))


class _Looks:
    """Looks at many files: at what they link to, and only within a guard, if there is one."""

    def __init__(self, patterns: Sequence[str], files: Iterable[str], folder: str, guard: PathGuard | None) -> None:
        """Take the paths of the input as the manifest has them, its files, and the folder from which they are named."""
        self._objects = _Looked(patterns, files)
        self._folder = folder
        self._guard = guard

    def states(self, paths: Sequence[str]) -> tuple[Sequence[int], Sequence[int]]:
        """Return sizes and modification times, or versions. Raises OrtdeployError and PathEscapesError."""
        found = self.at_once(paths)
        if found is None:
            sizes, times = zip(*self.one_by_one(paths), strict=True)
            return sizes, times
        return found

    def at_once(self, paths: Sequence[str]) -> tuple[list[int], list[int]] | None:
        """Return what `states` does, with one call of the system each; None if one of them needs another look."""
        text = _BETWEEN.join((*paths, ""))
        if ":" in text or any(f"{os.sep}{name}{_BETWEEN}" in text for name in _NO_NAMES):
            return None
        guard = self._guard
        if guard is not None and any(guard.is_left_by(one, is_link=False) for one in one_of_each_folder(paths, text)):
            return None
        try:
            found = [*map(os.stat if self._guard is None else os.lstat, paths)]
        except OSError:
            return None
        if not all(map(stat.S_ISREG, {one.st_mode for one in found})):
            return None
        return [one.st_size for one in found], _in_64_bits([one.st_mtime_ns for one in found])

    def one_by_one(self, paths: Iterable[str]) -> Iterator[tuple[int, int]]:
        """Yield size and modification time, or version, of each. Raises OrtdeployError and PathEscapesError."""
        inside = None
        for path in paths:
            if self._guard is None or is_url(path):
                yield _look(path, self._objects)
                continue
            try:
                found = os.lstat(path)
            except OSError:
                found = None  # looking again says why
            is_link = found is not None and stat.S_ISLNK(found.st_mode)
            above, _, name = path.rpartition(os.sep)
            if above != inside or is_link or name in _NO_NAMES:
                if self._guard.is_left_by(path, is_link=is_link):
                    raise PathEscapesError(shown(path, self._folder), by_link=os.pardir not in Path(path).parts)
                inside = None if is_link or name in _NO_NAMES else above
            if found is None or not stat.S_ISREG(found.st_mode):
                yield _look(path, self._objects)
            else:
                yield state_in_stat(found)


def one_of_each_folder(paths: Sequence[str], text: str) -> Collection[str]:
    """Return one path of each folder; `text` are all paths, each with NUL behind it."""
    folder = paths[0][: paths[0].rfind(os.sep) + 1]
    are_in_it = f"{_BETWEEN}{text}".count(f"{_BETWEEN}{folder}") == len(paths)
    if folder and are_in_it and text.count(os.sep) == folder.count(os.sep) * len(paths):
        return paths[:1]
    return {path.rpartition(os.sep)[0]: path for path in paths}.values()


def _look(path: str, addresses: "_Looked") -> tuple[int, int]:
    """Return size and modification time, or version, of a file in full. Raises OrtdeployError."""
    if is_url(path):
        return addresses.state(path)
    try:
        found = os.stat(path)  # noqa: PTH116  a hundred thousand of them
    except OSError as error:
        raise unreadable(path, error) from error
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        raise OrtdeployError(f"{path} is a pipe, a socket or a device, and not a file; move it away, or name others")
    return state_in_stat(found)


def unreadable(path: str, error: OSError) -> OrtdeployError:
    """Return the error of a file that cannot be looked at; a link may lead to a disk that is not mounted."""
    why = f"{error.strerror}"
    if os.path.islink(path):  # noqa: PTH114  text
        why = f"it is a link to {os.readlink(path)}: {why}"  # noqa: PTH115  text
    return OrtdeployError(f"input file {path} cannot be read: {why}")


def state_in_stat(found: os.stat_result) -> tuple[int, int]:
    """Return size and modification time of a file, as a `FileState` has them."""
    time = found.st_mtime_ns
    return found.st_size, time if -_TOO_MUCH <= time < _TOO_MUCH else _in_64_bits([time])[0]


def _in_64_bits(times: list[int]) -> list[int]:
    """Return times of files as numbers that a ledger can hold.

    Some file systems have times before 1677 and after 2262, which in nanoseconds take more than 64 bits. They are only
    compared, so the lowest 64 bits will do.
    """
    if not times or (min(times) >= -_TOO_MUCH and max(times) < _TOO_MUCH):
        return times
    return [(time + _TOO_MUCH) % (2 * _TOO_MUCH) - _TOO_MUCH for time in times]


def states_digest(states: Sequence[FileState]) -> str:
    """Return a digest of names, sizes and modification times."""
    digest = hashlib.sha256()
    for names, sizes, times in FileStates.of(states).by_column():
        text = os.fsencode(names)  # a name may be any bytes
        digest.update(f"{len(sizes)} {len(text)} ".encode() + text)
        digest.update(array("q", sizes))
        digest.update(array("q", times))
    return digest.hexdigest()


def shown(path: str, folder: str) -> str:
    """Return a path in the form that messages show: relative to the manifest, with forward slashes; or its URL.

    A file beside the manifest that is called like a URL, such as `data:x.png`, is `./data:x.png`.
    """
    if MARK in path:
        from ortdeploy.files.object_store import shown_url  # noqa: PLC0415  only where a file may have been fetched

        url = shown_url(path)
        if url is not None:
            return url
    if path.startswith(f"{folder}{os.sep}"):
        name = path[len(folder) + 1 :].replace(os.sep, "/")
        return f"./{name}" if is_url(name) else name
    return path if is_url(path) else relative(path, folder)


def _shown_names(paths: Sequence[str], folder: str) -> str:
    """Return paths as `shown` returns each, as one text with NUL between them."""
    text, prefix = _BETWEEN.join(paths), f"{folder}{os.sep}"
    if ":" in text or MARK in text or f"{_BETWEEN}{text}".count(f"{_BETWEEN}{prefix}") != len(paths):
        return _BETWEEN.join(shown(path, folder) for path in paths)
    return text[len(prefix) :].replace(f"{_BETWEEN}{prefix}", _BETWEEN).replace(os.sep, "/")


def _full_paths(names: str, folder: str) -> list[str]:
    """Return the full paths of names with NUL between them, as `full_path` returns each."""
    if ":" in names or f"{_BETWEEN}/" in f"{_BETWEEN}{names}" or folder.endswith(os.sep):
        return [full_path(folder, name) for name in names.split(_BETWEEN)]
    return f"{folder}{os.sep}{names.replace(_BETWEEN, f'{_BETWEEN}{folder}{os.sep}')}".split(_BETWEEN)


class UnmountedFolders:
    """Tells which files may be on a device that is not mounted now: their folder is missing or empty.

    A folder that no pattern names by itself, such as that of a day, may go with its files.
    """

    def __init__(self, folder: str, patterns: Sequence[str], seen: Iterable[str] = ()) -> None:
        """Take the manifest's folder, the input's paths, and files of it that were seen a moment ago."""
        self._folder = folder
        self._named: set[str] = set()
        for full in (in_full(folder, one) for one in patterns if not is_url(one)):
            fixed = full
            while has_magic(fixed):
                fixed = os.path.dirname(fixed)  # noqa: PTH120  text
            self._named |= {as_name(fixed), *([os.path.dirname(as_name(full))] if fixed == full else [])}  # noqa: PTH120
        one_of_each = {path.rpartition("/")[0]: path for path in seen}.values()  # there may be a million
        self._may_be: dict[str, bool] = {self._above(path): False for path in one_of_each}

    def may_hold(self, path: str) -> bool:
        """Return whether a file, by its path from the manifest, may be there again later, as it was."""
        if is_url(path):
            return False
        above = self._above(path)
        if above not in self._may_be:
            self._may_be[above] = self._is_missing_or_empty(above)
        return self._may_be[above]

    def _above(self, path: str) -> str:
        return os.path.normpath(os.path.dirname(full_path(self._folder, path)))  # noqa: PTH120  text

    def _is_missing_or_empty(self, folder: str) -> bool:
        while folder not in self._named and not os.path.lexists(folder):
            folder = os.path.dirname(folder)  # noqa: PTH120  text
        try:
            with os.scandir(folder) as entries:
                return next(entries, None) is None
        except OSError:
            return True


def full_path(folder: str, path: str) -> str:
    """Return the full path of a path below the manifest's folder; a URL is unchanged."""
    if ":" in path or path.startswith("/") or folder.endswith(os.sep):
        return path if is_url(path) else os.path.join(folder, path)  # noqa: PTH118  keeps what is absolute
    return f"{folder}{os.sep}{path}"  # the same, of most of a hundred thousand
