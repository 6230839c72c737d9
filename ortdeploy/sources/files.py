"""Lists the files that an input names, and computes a digest that changes with them."""

import glob
import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import FileState
from ortdeploy.files.gate import Fence, LeadsOutError
from ortdeploy.files.listing import expand
from ortdeploy.files.names import is_file, is_folder
from ortdeploy.files.object_store import MARK, is_web, list_states, list_urls, shown_url, state_of
from ortdeploy.files.urls import Addresses, is_url, parse_url

_MAGIC = "*?["
_AT_ONCE = 10_000
"""Files whose text is held at once."""
_ALONE = 16
"""Objects that are asked for one by one."""
_OF_THE_SYSTEM = "lost+found"
"""A folder of file systems, which nobody but root reads and nobody fills."""


def list_files(folder: str, patterns: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the files that paths, folders and globs name, each once; sorted within each pattern.

    URLs are in their shown form, without users, passwords and queries; `Addresses` of the patterns has those.
    """
    found: dict[str, None] = {}
    addresses = Addresses.of(patterns)
    for pattern in patterns:
        if is_url(pattern):
            own, listed = parse_url(pattern).full, list_urls(pattern)
            found.update((addresses.shown(pattern) if url == own else parse_url(url).shown, None) for url in listed)
            continue
        full = os.path.normpath(os.path.join(folder, pattern))  # noqa: PTH118  keeps a glob's text as it is
        expanded = expand(full)
        if not expanded:
            _check_readable(full)
        _check_folders(full)
        found.update(dict.fromkeys(expanded))
    return tuple(found)


def _check_folders(full: str) -> None:
    """Raise OrtdeployError if a folder that a glob names cannot be looked into: it would be passed over."""
    parts = Path(full).parts
    magic = [index for index, part in enumerate(parts) if any(sign in part for sign in _MAGIC)]
    if not magic or is_file(full):
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
    fixed = full.split("*", maxsplit=1)[0].split("?", maxsplit=1)[0]
    for folder in (os.path.normpath(fixed), *map(str, Path(fixed).parents)):
        if is_folder(folder):
            if not os.access(folder, os.R_OK | os.X_OK):
                raise _unreadable(folder)
            return


def file_states(
    files: Sequence[str], folder: str, patterns: Sequence[str] = (), fence: Fence | None = None
) -> tuple[FileState, ...]:
    """Return size and time of files, without reading them: inputs can be terabytes. Raises OrtdeployError.

    `patterns` are the paths of the input, as the manifest has them. Raises LeadsOutError if one leads out of a fence.
    """
    addresses, found = _Looked(patterns, sum(map(is_url, files))), []
    for path in files:
        size, mtime_ns = _look(path, addresses) if fence is None else _look_within(fence, path, addresses, folder)
        found.append(FileState(path=shown(path, folder), size=size, mtime_ns=mtime_ns))
    return tuple(found)


def find_changed(states: Sequence[FileState], folder: str, patterns: Sequence[str] = ()) -> str | None:
    """Return the first file that is not what it was. Raises OrtdeployError if one cannot be looked at."""
    addresses = _Looked(patterns, sum(is_url(state.path) for state in states))
    for state in states:
        if _look(full_path(folder, state.path), addresses) != (state.size, state.mtime_ns):
            return state.path
    return None


class _Looked:
    """States of the objects of an input: of a few each is asked for, of many their listings are."""

    def __init__(self, patterns: Sequence[str], number: int) -> None:
        """Take the paths of the input as the manifest has them, and how many of its files are objects."""
        self._addresses = Addresses.of(patterns)
        self._patterns = [one for one in patterns if is_url(one) and not is_web(parse_url(one))]
        self._listed: dict[str, tuple[int, int]] | None = None if number > _ALONE else {}

    def state(self, path: str) -> tuple[int, int]:
        """Return size and version of an object. Raises OrtdeployError."""
        if self._listed is None:
            listed = (one for pattern in self._patterns for one in list_states(pattern))
            self._listed = {parse_url(url).shown: state for url, state in listed}
        return self._listed.get(path) or state_of(self._addresses.full(path))


def _look(path: str, addresses: "_Looked") -> tuple[int, int]:
    """Return size and modification time, or version, of a file in full. Raises OrtdeployError."""
    if is_url(path):
        return addresses.state(path)
    try:
        found = os.stat(path)  # noqa: PTH116  a hundred thousand of them
    except OSError as error:
        raise OrtdeployError(f"input file {path} cannot be read: {error.strerror}") from error
    return found.st_size, found.st_mtime_ns


def _look_within(fence: Fence, path: str, addresses: "_Looked", folder: str) -> tuple[int, int]:
    """Return the same of a file within a fence, in one call of the system if it is no link. Raises OrtdeployError."""
    if is_url(path):
        return _look(path, addresses)
    try:
        found = os.lstat(path)
    except OSError:
        found = None  # another look says why
    is_link = found is not None and stat.S_ISLNK(found.st_mode)
    if fence.is_left_by(path, is_link=is_link):
        raise LeadsOutError(shown(path, folder))
    return _look(path, addresses) if found is None or is_link else (found.st_size, found.st_mtime_ns)


def states_digest(states: Sequence[FileState]) -> str:
    """Return a digest of names, sizes and modification times."""
    digest = hashlib.sha256()
    for start in range(0, len(states), _AT_ONCE):
        some = states[start : start + _AT_ONCE]
        text = "".join([f"{state.path}\0{state.size}\0{state.mtime_ns}\n" for state in some])
        digest.update(os.fsencode(text))  # a name may be any bytes
    return digest.hexdigest()


def shown(path: str, folder: str) -> str:
    """Return a path in the form that messages show: relative to the manifest, with forward slashes; or its URL."""
    if MARK in path and (url := shown_url(path)) is not None:
        return url
    if path.startswith(f"{folder}{os.sep}"):
        return path[len(folder) + 1 :].replace(os.sep, "/")
    return path if is_url(path) else os.path.relpath(path, folder).replace(os.sep, "/")


def full_path(folder: str, path: str) -> str:
    """Return the full path of a path below the manifest's folder; a URL is unchanged."""
    if ":" in path or path.startswith("/") or folder.endswith(os.sep):
        return path if is_url(path) else os.path.join(folder, path)  # noqa: PTH118  keeps what is absolute
    return f"{folder}{os.sep}{path}"  # the same, of most of a hundred thousand
