"""Only regular files are opened, and opening waits for nobody."""

import ast
import os
import re
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ortdeploy.files import opening
from ortdeploy.files.opening import (
    NoRegularFileError,
    descriptor_of,
    open_regular,
    open_text,
    open_to_write,
    open_unbuffered,
    read_text,
    read_whole,
    regular_path,
)

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")

OPENERS: tuple[Callable[[Path], object], ...] = (
    descriptor_of, regular_path, open_regular, open_unbuffered, open_text, read_whole, read_text,
)  # fmt: skip


@pytest.fixture
def listening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A socket that somebody listens at."""
    monkeypatch.chdir(tmp_path)  # the name of a socket has at most about a hundred characters
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("socket")
        one.listen()
        yield tmp_path / "socket"


@pytest.mark.parametrize("opener", OPENERS)
def test_what_is_no_file_is_named_and_not_opened(
    opener: Callable[[Path], object], listening: Path, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    kinds = {tmp_path / "pipe": "a named pipe", tmp_path / "link": "a named pipe", listening: "a socket"}
    kinds |= {Path(device): "a device" for device in ("/dev/zero", "/dev/tty", "/dev/null")}
    for path, kind in kinds.items():
        with pytest.raises(NoRegularFileError) as failure:
            opener(path)
        assert failure.value.strerror == f"it is {kind}, and only regular files are opened"
        assert failure.value.filename == str(path)
    with pytest.raises(IsADirectoryError):
        opener(tmp_path)
    with pytest.raises(FileNotFoundError):
        opener(tmp_path / "gone")


def test_nothing_but_a_regular_file_is_written_to(listening: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", listening, Path("/dev/null")):
        with pytest.raises(NoRegularFileError):
            open_to_write(path)
    with pytest.raises(IsADirectoryError):
        open_to_write(tmp_path)
    for content in (b"longer", b"new"):
        with open_to_write(tmp_path / "file") as file:
            file.write(content)
        assert (tmp_path / "file").read_bytes() == content
    assert regular_path(tmp_path / "gone", may_be_missing=True) == tmp_path / "gone"


def test_what_takes_the_place_of_a_file_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    regular = Path(__file__).stat()
    opened, closed, open_it, close_it = list[int](), list[int](), os.open, os.close

    def note_opened(path: Path, flags: int, mode: int = 0o777) -> int:
        opened.append(open_it(path, flags, mode))
        return opened[-1]

    def note_closed(descriptor: int) -> None:
        closed.append(descriptor)
        close_it(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", lambda _path: regular)
        patch.setattr(os, "open", note_opened)
        patch.setattr(os, "close", note_closed)
        with pytest.raises(NoRegularFileError, match="a named pipe"):
            descriptor_of(tmp_path / "pipe")
    assert opened
    assert set(opened) <= set(closed)


def test_regular_files_are_read_as_python_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("a\r\nb\xe9\n".encode())
    (tmp_path / "link").symlink_to(path)
    for name in (path, tmp_path / "link", str(path)):
        assert read_whole(name) == path.read_bytes()
        assert read_text(name) == path.read_text(encoding="utf-8")
    with open_text(path, newline="") as file:
        assert file.read() == "a\r\nb\xe9\n"
    with open_regular(path) as file:
        assert file.name == str(path)
        assert not os.get_inheritable(file.fileno())
        assert stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    path.write_bytes(b"\xff")
    with pytest.raises(UnicodeDecodeError):
        read_text(path)
    assert read_text(path, errors="replace") == "\ufffd"


def test_a_file_with_a_lease_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "leased").write_text("x")
    open_it = os.open

    def busy(path: Path, flags: int, mode: int) -> int:
        if flags & os.O_NONBLOCK:
            raise BlockingIOError
        return open_it(path, flags, mode)

    monkeypatch.setattr(os, "open", busy)
    descriptor = descriptor_of(tmp_path / "leased")
    with suppress(OSError):
        os.close(descriptor)


OPENS = {
    *("open", "fdopen", "read_text", "read_bytes", "write_text", "write_bytes", "fromfile", "loadtxt", "genfromtxt"),
    *("memmap", "load", "load_model", "connect", "ZipFile", "OSFile", "memory_map", "open_file", "ParquetFile"),
    *("read_table", "safe_open", "from_file", "InferenceSession", "SoundFile", "Load", "copyfile", "copy2", "copytree"),
}
"""What opens a file by its name, of Python, NumPy and all packages in use."""

MADE = "a file in a folder that this process has just made"
SYSTEM = "files of the system, which are no user's"
OURS = "files of the package"
OPENED = "takes an open file, or bytes"
NO_FILE = "opens no file"
ELSEWHERE = {
    "api.py": {"file.write_bytes": MADE, "file.with_name(name).write_bytes": MADE},
    "cli/commands/shared.py": {"Path(arguments.log_file).open": "a log may go to a pipe or a device, as docs/events.md says"},
    "cli/commands/tune.py": {"(Path(folder) / 'overlay.yaml').write_text": MADE},
    "cli/output/log.py": {"(folder / name).open": "the name has the time and the process"},
    "cli/output/streams.py": {"os.fdopen": OPENED, "os.open": SYSTEM},
    "facts/onnx_operators.py": {"(schema_folder() / table_name(domain, opset)).read_text": OURS},
    "files/atomic.py": {"os.open": "a folder, to sync it", "temporary.open": "what a library has just written there"},
    "files/content_store.py": {"open": "a new file, which must not be there", "os.open": "the same"},
    "files/in_place.py": {"system.open": "an object of a store"},
    "files/numpy_archives.py": {
        "zipfile.ZipFile": OPENED, "self._zipped.open": OPENED, "self.open": OPENED, "archive.load": OPENED, "zipped.open": OPENED,
    },
    "files/scratch.py": {"os.open": "a folder, to lock it"},
    "files/shared_store.py": {"system.open": "an object of a store"},
    "files/stored_file.py": {"path.open": "an object of a store"},
    "files/walk.py": {
        "os.open": "a folder, or a file that the line above has looked at", "self.open_file": "that one",
        "walk.open_file": "that one",
    },
    "files/web.py": {"target.open": MADE},
    "ledger/backup.py": {"archive.open": MADE, "sqlite3.connect": MADE, "zipfile.ZipFile": OPENED},
    "ledger/transfer.py": {"sqlite3.connect": MADE},
    "ledger/opening.py": {"sqlite3.connect": "a regular_path of the line above, or memory"},
    "pipelines/state.py": {"np.load": OPENED},
    "planning/probing/fetched_files.py": {"names.write_bytes": MADE},
    "planning/preflight/generation_folders.py": {"(scratch.path / preset.files[part]).write_bytes": MADE},
    "planning/preflight/op_sessions.py": {"(folder / HOLE).open": MADE, "path.write_bytes": MADE, "outline.write_bytes": MADE},
    "planning/preflight/openings.py": {"(folder / HOLE).open": MADE, "path.write_bytes": MADE},
    "process/child.py": {"os.fdopen": OPENED},
    "process/control_group.py": {"Path('/proc/self/cgroup').read_text": SYSTEM},
    "process/cores.py": {"(folder / name).read_text": SYSTEM},
    "process/crash_note.py": {"path.open": "the note that this process has just written"},
    "process/fork.py": {"os.fdopen": OPENED, "os.open": SYSTEM},
    "process/last_words.py": {"os.open": SYSTEM, "open": "the system's, and the note that this process has written"},
    "process/memory.py": {
        "Path(path).read_text": SYSTEM, "(folder / name).read_text": SYSTEM,
        "Path('/proc/self/maps').read_text": SYSTEM, "Path('/proc/self/smaps').read_text": SYSTEM,
    },
    "process/sensors.py": {"path.read_text": SYSTEM},
    "jobs/executor.py": {"settings.models.open": NO_FILE},
    "jobs/opened_models.py": {"self.open": NO_FILE},
    "parts/part_writer.py": {"open_file": NO_FILE},
    "jobs/rebuild.py": {"file.write_bytes": MADE},
    "runtime/generation.py": {
        "self._adapters.load": "an adapter that is among the files of the plan",
        "(beside / CONFIG).write_text": MADE,
    },
    "runtime/probe.py": {"(info / 'METADATA').read_text": "files of installed packages"},
    "runtime/session.py": {"ort.InferenceSession": "a path that the lines above have looked at, or bytes"},
    "runtime/supported_versions.py": {"ort.InferenceSession": OPENED},
    "schemas.py": {"(schema_folder() / f'{name}{SUFFIX}').read_text": OURS},
    "sinks/arrow.py": {"pa.ipc.open_file": OPENED},
    "sinks/npz.py": {"zipfile.ZipFile": OPENED, "archive.open": OPENED},
    "sources/arrays.py": {"self._source.load": "a function of the format, which opens with this room"},
    "sources/arrow.py": {"pa.ipc.open_file": OPENED},
    "sources/catalogue.py": {"windows.open": "a function of ours"},
    "sources/image.py": {"image.load": OPENED, "pillow().open": OPENED},
    "sources/npz.py": {"self._archive.load": OPENED},
    "sources/parquet.py": {"parquet.ParquetFile": OPENED},
    "sources/whole_files.py": {"os.fdopen": OPENED},
    "sources/video_frames.py": {"av.open": OPENED},
    "starters/samples.py": {"wave.open": OPENED},
    "versions.py": {"open": "files of installed packages"},
    "views/terminal_pictures.py": {"Image.open": OPENED},
}  # fmt: skip
"""What is opened without this room, by module, and why that is no path that somebody else may have made a pipe."""


def test_every_other_room_opens_files_through_this_one() -> None:
    package = Path(opening.__file__).parents[1]
    found: dict[str, set[str]] = {}
    for path in package.rglob("*.py"):
        if path != Path(opening.__file__):
            calls = {ast.unparse(call.func) for call in calls_in(path) if opens(call)}
            found |= {path.relative_to(package).as_posix(): calls} if calls else {}
    assert found == {module: set(calls) for module, calls in ELSEWHERE.items()}


def calls_in(path: Path) -> Iterator[ast.Call]:
    text = path.read_text(encoding="utf-8")
    if re.search(rf"\b({'|'.join(OPENS)})\(", text):
        yield from (one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.Call))


def opens(call: ast.Call) -> bool:
    """Whether a call opens a file by its name, and does not ask `regular_path` first."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name not in OPENS or (isinstance(call.func, ast.Name) and hasattr(opening, name)):
        return False
    within = {
        getattr(one.func, "id", "") for given in call.args for one in ast.walk(given) if isinstance(one, ast.Call)
    }
    return within.isdisjoint({"regular_path", "database"})
