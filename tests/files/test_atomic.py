"""Files that get their names when they are whole."""

import errno
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

import pytest

from ortdeploy.files import atomic
from ortdeploy.files.atomic import open_cached, open_whole, remove_temporaries


@pytest.mark.parametrize("opened", [open_whole, open_cached])
def test_two_that_write_a_file_at_once_do_not_disturb_each_other(
    tmp_path: Path, opened: Callable[[Path], AbstractContextManager[BinaryIO]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As two machines do that finish a plan in one folder, and two processes of one machine that note the same."""
    path = tmp_path / "_run.json"
    if opened is open_whole:
        machines = iter("ab")
        monkeypatch.setattr(atomic, "_machine", lambda: next(machines))
    with opened(path) as file:
        file.write(b"a longer report")
        with opened(path) as other:
            other.write(b"a report")
        assert path.read_bytes() == b"a report"
    assert path.read_bytes() == b"a longer report"
    assert list(tmp_path.iterdir()) == [path]


def test_the_next_process_overwrites_what_a_killed_one_has_left(tmp_path: Path) -> None:
    with open_whole(tmp_path / "_run.json"):
        (left,) = tmp_path.iterdir()
    left.write_bytes(b"half of")
    with open_whole(tmp_path / "_run.json") as file:
        file.write(b"all of it")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"all of it"]


def test_what_a_kill_left_is_removed(tmp_path: Path) -> None:
    with open_whole(tmp_path / "_run.json"):
        (left,) = tmp_path.iterdir()
        left.with_name(f"{left.name[:-9]}1.partial").touch()
    remove_temporaries(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["_run.json"]


def test_young_temporaries_of_other_writers_stay(tmp_path: Path) -> None:
    """The state folder is shared: what another run wrote a moment ago is about to get its name."""
    (tmp_path / "below").mkdir()
    names = [".a.1.partial", "below/.b.2.partial"]
    for name in names:
        (tmp_path / name).touch()
        (tmp_path / name.replace(".partial", "0.partial")).touch()
        os.utime(tmp_path / name, (1, 1))
    remove_temporaries(tmp_path, seconds=3600)
    left = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.partial"))
    assert left == [".a.10.partial", "below/.b.20.partial"]
    remove_temporaries(tmp_path)
    assert list(tmp_path.rglob("*.partial")) == []


@pytest.mark.skipif(os.name == "nt", reason="links take rights on Windows")
def test_temporaries_behind_a_link_are_not_ours(tmp_path: Path) -> None:
    folder, outside = tmp_path / "out", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (outside / ".a.1.partial").touch()
    (folder / "link").symlink_to(outside)
    remove_temporaries(folder)
    assert (outside / ".a.1.partial").exists()


@pytest.mark.parametrize("opened", [open_cached, open_whole])
def test_a_disk_that_is_full_is_told_with_the_file(
    tmp_path: Path, opened: Callable[[Path], AbstractContextManager[BinaryIO]]
) -> None:
    for number, named in ((errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EIO, False)):  # of what was read, maybe
        with pytest.raises(OSError, match="no") as raised, opened(tmp_path / "a"):
            raise OSError(number, "no")
        assert raised.value.filename == (str(tmp_path / "a") if named else None)
    with pytest.raises(OSError, match="no") as raised, opened(tmp_path / "a"):
        raise OSError(errno.ENOSPC, "no", "another")
    assert raised.value.filename == "another"
    assert not list(tmp_path.iterdir())
