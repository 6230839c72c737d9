"""Remembers the answers of an apply with nothing to do and of a status, and repeats them while nothing has changed.

A plan depends on the command line, the environment, this code, the machine and files. Each is looked at again: every
file by device, inode, size and times, as for remembered digests, and by its folder's real path, because the gate
follows links. If anything differs, or may differ, the plan is made. It is also made if anything changed shortly before
the command began, because a file may change again within one tick of its times. `rests_on` says for which plans this
works: not for those that depend on a clock or a server.

Imports almost nothing, because imports take most of the time of a process with nothing to do.
"""

import errno
import hashlib
import os
import re
import stat
import sys
import time
from contextlib import suppress

from ortdeploy.files.listing import as_name, expand, folders_like, links_below
from ortdeploy.files.names import STATE_DIR
from ortdeploy.files.opening import open_regular, open_text
from ortdeploy.state import looks, memo

TYPE_CHECKING = False  # typing takes as long to import as everything else here
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

_KIND = "answer"
"""The kind of the answers, of the memo."""
_MOST_TEXT = 32 * 1024 * 1024
RACY_NS = 2_000_000_000
"""Nanoseconds; a file that changed less than this before the command began may change again within one tick."""
_PLAIN = r"(?:[^\x00-\x09\x0b-\x1f\x7f-\x9f]|\x1b\[[0-9;]*m)*"
"""Text that may go to a terminal: lines, without control characters."""
OF_ONE_PROCESS = frozenset({
    "INVOCATION_ID", "JOURNAL_STREAM", "OLDPWD", "PWD", "SHLVL", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY",
    "SYSTEMD_EXEC_PID", "TERM_SESSION_ID", "WINDOWID", "XDG_SESSION_ID", "_",
})  # fmt: skip
"""Variables that differ from start to start, and that neither ortdeploy nor a library of planning reads."""
_OF_THE_SYSTEM = (
    "/etc/localtime", "/etc/zoneinfo", "/usr/lib/locale", "/usr/lib/locale/locale-archive", "/usr/lib/zoneinfo",
    "/usr/share/lib/zoneinfo", "/usr/share/zoneinfo",
)  # fmt: skip
"""Files and folders of locales and time zones, which plans use."""
_DEVICES = "/dev"
_FOLDERS_OF_DEVICES = ("accel", "bus", "dri")
"""Where Linux shows which accelerators there are: there, and in these folders."""
_DRIVERS = "/sys/module"
_OF_DRIVERS = (
    "/etc/OpenCL/vendors", "/etc/ld.so.cache", "/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d",
    "/usr/share/vulkan/icd.d",
)  # fmt: skip
"""Files and folders that change when libraries of drivers are installed."""
_NAMING_DRIVERS = ("ADSP_LIBRARY_PATH", "LD_LIBRARY_PATH", "OCL_ICD_VENDORS", "VK_DRIVER_FILES", "VK_ICD_FILENAMES")
"""Variables that name more of them."""
_LIMITS = (
    "/sys/fs/cgroup/{}/cpu.max", "/sys/fs/cgroup/{}/memory.max", "/sys/fs/cgroup/memory/{}/memory.limit_in_bytes",
    "/sys/fs/cgroup/cpu/{}/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/{}/cpu.cfs_period_us",
)  # fmt: skip


class AnswerMemo:
    """What is remembered for one command line; made before the command looks at anything."""

    def __init__(self, arguments: "argparse.Namespace") -> None:
        self._began = time.time_ns()
        self._key = _key(arguments)
        self._every = getattr(arguments, "every", None)
        self._folder = _folder_of(arguments)
        self._state_dir = _state_dir(arguments, self._folder)
        self._places = self._where()

    def answer(self) -> str | None:
        """Return what the command printed, if it would print the same again."""
        known = self.recall(_KIND)
        printed = None if known is None else known.get("printed")
        is_known = isinstance(printed, str) and re.fullmatch(_PLAIN, printed)
        return printed if known and is_known and looks.touch(known["documents"], self._every) else None

    def keep(
        self,
        rests_on: "Mapping[str, Any] | None",
        state_dir: str,
        printed: str | None,
        documents: "Sequence[str]" = (),
    ) -> None:
        """Remember what was printed, and the `documents` that say how the device is.

        If that cannot be written, the next plan is made.
        """
        if rests_on is not None and printed is not None and re.fullmatch(_PLAIN, printed):
            told = {"printed": printed, "documents": [os.path.abspath(one) for one in documents]}  # noqa: PTH100
            self.remember(_KIND, self.look(rests_on), state_dir, told)

    def recall(self, kind: str) -> "dict[str, Any] | None":
        """Return the value of a kind that is remembered for the command line, if all that it rests on still holds."""
        if self._state_dir is None:
            return None
        known: dict[str, Any] = memo.get(self._state_dir, kind, self._key)
        with suppress(OSError, ValueError, TypeError, KeyError):
            if self._began < known["since"]:  # a clock that was set back makes files unsettled again
                return None
            if known["folders"] != _folders(known["rests_on"]["patterns"]):  # something has come or gone
                return None
            look = _Look(self._began)
            look.at_all(known["rests_on"], self._folder)
            return known if look.digest() == known["state"] else None
        return None

    def look(self, rests_on: "Mapping[str, Any]") -> "dict[str, Any] | None":
        """Return the state of everything, for `remember`; None if it may have changed since planning began."""
        if self._state_dir is None or self._where() != self._places:
            return None
        rests_on = {**rests_on, "code": code_files()}
        with suppress(OSError, ValueError):
            look, folders = _Look(self._began), _folders(rests_on["patterns"])
            look.at_all(rests_on, self._folder)
            if look.is_settled:
                return {"since": self._began, "rests_on": rests_on, "state": look.digest(), "folders": folders}
        return None

    def remember(self, kind: str, seen: "Mapping[str, Any] | None", state_dir: str, told: "Mapping[str, Any]") -> None:
        """Keep the result of the command, for as long as everything is as it was seen."""
        mine = self._state_dir is not None and os.path.realpath(self._state_dir) == os.path.realpath(state_dir)
        if seen is not None and mine:
            memo.put(state_dir, kind, self._key, {**seen, **told})

    def forget(self, kind: str) -> None:
        """Remember no value of a kind for the command line."""
        if self._state_dir is not None:
            memo.drop(self._state_dir, kind, self._key)

    def _where(self) -> "list[tuple[int, int] | None]":
        """Return the identities of the manifest's folder and the state folder, which must stay the same folders."""
        return [_place(folder) for folder in (self._folder, self._state_dir) if folder is not None]


def _folders(patterns: "Sequence[str]") -> "list[list[int] | None]":
    """Return the states of the folders in which patterns look; if one has changed, its files need not be looked at."""
    names = map(as_name, patterns)
    folders = (name if os.path.isdir(name) else os.path.dirname(name) for name in names)  # noqa: PTH112, PTH120
    return [[*_seen(os.stat(folder))] if os.path.isdir(folder) else None for folder in folders]  # noqa: PTH112, PTH116


def code_files() -> "list[str]":
    """Return the files of the modules that this process has loaded, except Python's own."""
    library = os.path.dirname(os.__file__) + os.sep  # noqa: PTH120  text
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    own = (file for file in files if isinstance(file, str))
    return sorted(file for file in own if not file.startswith(library) or "site-packages" in file)


class _Look:
    """A digest over the states of everything looked at, and whether all of it has been unchanged for a while."""

    def __init__(self, began: int) -> None:
        self._digest = hashlib.sha256()
        self._settled_before = began - RACY_NS
        self._newest = 0
        self._real: dict[str, str] = {}
        self._ways: set[str] = set()

    @property
    def is_settled(self) -> bool:
        return self._newest < self._settled_before

    def digest(self) -> str:
        return self._digest.hexdigest()

    def at_all(self, rests_on: "Mapping[str, Any]", folder: str) -> None:
        """Look at everything. Raises OSError if something cannot be looked at."""
        self._add(_process())
        for path in (*sys.path, *_OF_THE_SYSTEM, *rests_on["code"]):
            self._at(path, data=False)
        self._ways.add(rests_on["state_dir"])  # into which every command writes
        self._at_way(folder, folder)
        self._at_files(rests_on["files"], folder)
        for pattern in rests_on["patterns"]:
            self._add([pattern, [(path, os.access(path, os.R_OK | os.X_OK)) for path in folders_like(pattern)]])
            self._at_files(expand(pattern), folder)
        for path in rests_on["trees"]:
            self._at_files(list(_tree(path)), folder)
        self._add([(path, _first_byte(path)) for path in rests_on["journals"]])
        self._add([(path, os.access(path, os.W_OK | os.X_OK)) for path in rests_on["writable"]])
        self._add([(link, os.readlink(link)) for link in links_below(rests_on["state_dir"])])  # noqa: PTH115  text
        if rests_on["devices"]:
            for path in (*_OF_DRIVERS, *_named_drivers()):
                self._at(path, data=False)
            for device in _devices():
                self._add(device[:-1])
                self._newest = max(self._newest, device[-1])  # it may have come while the command looked
            self._add([*_drivers()])

    def _at_files(self, files: "Sequence[str]", folder: str) -> None:
        for file in files:
            self._at(file)
        for way in {os.path.dirname(file) for file in files}:  # noqa: PTH120  text
            self._at_way(way, folder)

    def _add(self, what: "Any") -> None:
        self._digest.update(f"{what!r}\n".encode("utf-8", "surrogateescape"))

    def _at(self, path: str, *, data: bool = True) -> None:
        """Look at a file or folder; for data, also at its real path."""
        try:
            found = os.lstat(path)
            if stat.S_ISLNK(found.st_mode):
                self._add([path, os.path.realpath(path), _seen(found)])
                found = os.stat(path)  # noqa: PTH116  a hundred thousand of them
        except OSError as error:
            self._add([path, error.errno])
            return
        place = self._real_folder(os.path.dirname(path)) if data else ""  # noqa: PTH120  as above
        self._digest.update(f"{path!r}{place!r}{_seen(found)}\n".encode("utf-8", "surrogateescape"))
        self._newest = max(self._newest, found.st_mtime_ns, found.st_ctime_ns)

    def _real_folder(self, folder: str) -> str:
        if folder not in self._real:
            self._real[folder] = os.path.realpath(folder)
        return self._real[folder]

    def _at_way(self, folder: str, top: str) -> None:
        """Check that no folder on the path from the manifest's was replaced while the command looked."""
        while folder not in self._ways:
            self._ways.add(folder)
            with suppress(FileNotFoundError):
                self._newest = max(self._newest, os.lstat(folder).st_ctime_ns)
            if not folder.startswith(top + os.sep):
                return
            folder = os.path.dirname(folder)  # noqa: PTH120  text


def _seen(found: os.stat_result) -> tuple[int, ...]:
    return (found.st_mode, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _process() -> "list[Any]":
    """Return what a plan depends on in this process: the interpreter, environment, rights, cores and memory."""
    affinity = getattr(os, "sched_getaffinity", None)
    return [
        [sys.version, sys.flags, sys.warnoptions],
        _seen(os.stat(sys.executable)),  # noqa: PTH116  text
        sys.path,
        sorted(item for item in os.environ.items() if item[0] not in OF_ONE_PROCESS),
        [getattr(os, name)() for name in ("geteuid", "getegid", "getgroups") if hasattr(os, name)],
        os.uname() if hasattr(os, "uname") else "",
        sorted(affinity(0)) if affinity else os.cpu_count(),
        _text("/proc/sys/kernel/random/boot_id"),
        _text("/sys/devices/system/cpu/online"),
        _text("/proc/meminfo").partition("\n")[0],
        _text("/proc/self/cgroup"),
        [_text(limit.format(group)) for group in _groups() for limit in _LIMITS],
    ]


def _named_drivers() -> "Iterator[str]":
    """Yield the files and folders that variables of the environment name, in which libraries of drivers may be."""
    for name in _NAMING_DRIVERS:
        yield from filter(None, re.split("[:;]", os.environ.get(name, "")))


def _devices() -> "Iterator[tuple[str, int, bool, int]]":
    """Yield each device that is a stream of bytes, as accelerators are.

    Its path, its driver's numbers, whether this process may use it, and when a device came to its folder or left it, in
    nanoseconds. When its rights were set does not count: if they are the same, nothing has changed. Raises OSError if a
    folder of devices cannot be looked at.
    """
    for folder, inside, names in os.walk(_DEVICES, onerror=_raise):
        changed = os.stat(folder).st_mtime_ns  # noqa: PTH116  text
        inside[:] = sorted(name for name in inside if folder != _DEVICES or name in _FOLDERS_OF_DEVICES)
        for name in sorted(names):
            path = os.path.join(folder, name)  # noqa: PTH118  text
            with suppress(FileNotFoundError):
                found = os.lstat(path)
                if stat.S_ISCHR(found.st_mode):
                    yield path, found.st_rdev, os.access(path, os.R_OK | os.W_OK), changed


def _raise(error: OSError) -> None:
    raise error


def _drivers() -> "Iterator[tuple[str, str]]":
    """Yield the name of each module of the kernel, and the version of its source. Raises OSError if none are shown."""
    for name in sorted(os.listdir(_DRIVERS)):  # noqa: PTH208  text
        yield name, _text(os.path.join(_DRIVERS, name, "srcversion"))  # noqa: PTH118  text


def _groups() -> "Iterator[str]":
    """Yield the control groups that this process is in, up to the root."""
    for line in _text("/proc/self/cgroup").splitlines():
        path = line.rpartition(":")[2].strip("/")
        while path:
            yield path
            path = path.rpartition("/")[0]
    yield "."


def _text(path: str) -> str:
    with suppress(OSError), open_text(path, errors="replace") as file:
        return file.read(_MOST_TEXT)
    return ""


def _first_byte(path: str) -> bytes:
    """Return the first byte of a file, none if there is no file; SQLite ends a transaction by a zero in its journal."""
    try:
        with open_regular(path) as file:
            return file.read(1).strip(b"\0")
    except FileNotFoundError:
        return b""


def _tree(path: str) -> "Iterator[str]":
    """Yield a file, or a folder and everything in it. Raises OSError if a link leads to another folder."""
    yield path
    if os.path.isdir(path):  # noqa: PTH112  text
        if any(map(os.path.isdir, links_below(path))):
            raise OSError(errno.ELOOP, "a link to a folder is not looked into", path)
        for parent, folders, files in os.walk(path):
            folders.sort()
            yield from (os.path.join(parent, name) for name in sorted((*folders, *files)))  # noqa: PTH118


def _key(arguments: "argparse.Namespace") -> str:
    asked = [sorted(vars(arguments).items()), os.getcwd(), _terminal(), sys.argv[:1]]  # noqa: PTH109
    return hashlib.sha256(repr(asked).encode("utf-8", "surrogateescape")).hexdigest()


def _terminal() -> int | None:
    """Return the columns of the terminal, by which the output is broken; None without one, 0 if they are not known."""
    if not sys.stdout.isatty():
        return None
    with suppress(OSError, ValueError):
        return os.get_terminal_size(sys.stdout.fileno()).columns
    return 0


def _folder_of(arguments: "argparse.Namespace") -> str:
    """Return the folder of the manifest, or of the manifests, that the command line names."""
    path: str = os.path.abspath(arguments.paths[0])  # noqa: PTH100  keeps links
    return path if os.path.isdir(path) else os.path.dirname(path)  # noqa: PTH112, PTH120


def _state_dir(arguments: "argparse.Namespace", folder: str) -> str | None:
    """Return the state folder; None if nothing is remembered for such a command line."""
    if len(arguments.paths) != 1 or arguments.log_file or getattr(arguments, "new_run", False):
        return None
    if getattr(arguments, "taken", None) is not None:  # what is installed changes without a file that is compared
        return None
    own: str = os.path.abspath(arguments.state_dir or os.path.join(folder, STATE_DIR))  # noqa: PTH100, PTH118  keeps links
    left_to_the_gate = not arguments.state_dir and os.path.islink(own)  # noqa: PTH114  text
    return None if left_to_the_gate else own


def _place(folder: str) -> "tuple[int, int] | None":
    with suppress(OSError):
        found = os.stat(folder)  # noqa: PTH116  text
        return found.st_dev, found.st_ino
    return None
