"""Only regular files are opened, and opening waits for nobody."""

import os
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
    read_text,
    read_whole,
    require_regular,
)

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")

OPENERS: tuple[Callable[[Path], object], ...] = (
    descriptor_of, require_regular, open_regular, open_text, read_whole, read_text,
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
        assert failure.value.strerror == f"it is {kind}, and only regular files are read"
        assert failure.value.filename == str(path)
    with pytest.raises(IsADirectoryError):
        opener(tmp_path)
    with pytest.raises(FileNotFoundError):
        opener(tmp_path / "gone")


def test_what_takes_the_place_of_a_file_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    regular = Path(__file__).stat()
    monkeypatch.setattr(opening.os, "stat", lambda _path: regular)
    before = len(os.listdir("/dev/fd"))  # noqa: PTH208  text
    with pytest.raises(NoRegularFileError, match="a named pipe"):
        descriptor_of(tmp_path / "pipe")
    assert len(os.listdir("/dev/fd")) == before  # noqa: PTH208


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

    def busy(path: Path, flags: int) -> int:
        if flags & os.O_NONBLOCK:
            raise BlockingIOError
        return open_it(path, flags)

    monkeypatch.setattr(opening.os, "open", busy)
    descriptor = descriptor_of(tmp_path / "leased")
    with suppress(OSError):
        os.close(descriptor)
