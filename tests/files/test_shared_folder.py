"""A folder that many machines write into, with NFS's habits: errors after success, old answers, files that linger."""

import errno
import hashlib
import os
from pathlib import Path

import pytest
from support.nfs import Client

from ortdeploy.diagnostics import RefusedError
from ortdeploy.files import shared_folder
from ortdeploy.files.atomic import Written
from ortdeploy.files.shared_folder import SharedFolder
from ortdeploy.files.shared_place import beside


def staged(folder: Path, content: bytes = b"rows") -> SharedFolder:
    """A folder with a staged file called `.staged`."""
    (folder / "_parts").mkdir()
    place = SharedFolder(folder)
    with place.staging("_parts/.staged") as path:
        path.write_bytes(content)
        assert place.stage(path, "_parts/.staged") == ()
    return place


def test_a_staged_file_gets_its_name_once(tmp_path: Path) -> None:
    place = staged(tmp_path)
    assert place.publish("_parts/.staged", "part-0")
    assert not place.publish("_parts/.staged", "part-0")
    assert (tmp_path / "part-0").read_bytes() == b"rows"


def test_a_rename_that_was_carried_out_twice_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS sends again what was not answered, and the second rename finds no file."""
    place, rename = staged(tmp_path), Path.rename

    def twice(path: Path, target: Path) -> Path:
        rename(path, target)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", twice)
    assert not place.publish("_parts/.staged", "part-0")
    assert (tmp_path / "part-0").read_bytes() == b"rows"


def test_a_deletion_that_was_carried_out_twice_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, unlink = staged(tmp_path), os.unlink

    def twice(path: Path) -> None:
        unlink(path)
        raise FileNotFoundError(2, "sent again by NFS")

    monkeypatch.setattr(os, "unlink", twice)
    place.delete("_parts/.staged")
    assert list(place.names("_parts")) == []


def test_files_that_nfs_keeps_because_they_are_open_are_left_alone(tmp_path: Path) -> None:
    place = staged(tmp_path)
    (tmp_path / "_parts/.nfs0000000001").write_bytes(b"deleted, and still open")
    (tmp_path / "_parts/closed.json").write_bytes(b"{}")
    assert sorted(place.names("_parts")) == [".staged", "closed.json"]
    place.clear("_parts", keep=("closed.json",))
    assert sorted(path.name for path in (tmp_path / "_parts").iterdir()) == [".nfs0000000001", "closed.json"]
    place.clear("_parts")
    assert [path.name for path in (tmp_path / "_parts").iterdir()] == [".nfs0000000001"]


@pytest.mark.parametrize("before", [".", "_parts", "_parts/plan", "_parts/plan/bound.json"])
def test_what_another_machine_makes_is_found_though_this_one_remembers_that_it_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """A client asks again for names that it remembers not to exist once their folder is opened."""
    output, name = tmp_path / "output", "_parts/plan/bound.json"
    (output / before).parent.mkdir(parents=True, exist_ok=True)
    place, _ = SharedFolder(output), Client(monkeypatch)
    assert (list(place.names("_parts/plan")), place.exists(name), place.read(name)) == ([], False, None)
    (output / "_parts/plan").mkdir(parents=True, exist_ok=True)
    with (output / name).open("wb") as file:
        file.write(b"{}")
    assert not (output / name).exists()
    assert place.exists(name)
    assert place.read(name) == b"{}"
    assert list(place.names("_parts/plan")) == ["bound.json"]


def test_a_part_that_another_machine_has_just_named_is_no_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rename asks for the new name too: it was not there then, and the other machine's rename came in between."""
    place = staged(tmp_path)
    Client(monkeypatch)
    assert not (tmp_path / "part-0").exists()
    (tmp_path / "_parts/.staged").rename(tmp_path / "part-0")
    assert not place.publish("_parts/.staged", "part-0")
    assert place.holds("part-0", Written(sha256=hashlib.sha256(b"rows").hexdigest(), bytes=4, mtime_ns=0), ())


def test_a_file_that_goes_while_it_is_read_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever closes a plan deletes decisions that another machine reads."""
    place = staged(tmp_path)

    def stale(path: Path) -> bytes:
        if not path.exists():
            raise FileNotFoundError(errno.ENOENT, "it is gone")
        path.unlink()
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(shared_folder, "read_whole", stale)
    assert place.read("_parts/.staged") is None


def test_a_place_that_is_refused_has_no_trace_of_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the output could not be made by one machine either, as shards of it would seem to be unfinished."""

    def none(*_: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", none)
    with pytest.raises(RefusedError, match="makes no hard links"):
        SharedFolder(tmp_path).make("_parts/plan")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_is_not_one_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(OSError, match="No space left"):
        SharedFolder(tmp_path).make("_parts/plan")
    assert list(tmp_path.iterdir()) == []


def test_what_fails_leaves_nothing_staged(tmp_path: Path) -> None:
    (tmp_path / "_parts").mkdir()
    place = SharedFolder(tmp_path)

    def fail() -> None:
        with place.staging("_parts/.staged") as path:
            path.write_bytes(b"half")
            beside(path).mkdir()
            (beside(path) / "picture.png").write_bytes(b"png")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(place.names("_parts")) == []
