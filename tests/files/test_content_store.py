"""The store of contents: whole entries under the digest of their bytes, believed only while they have it."""

import errno
import hashlib
import os
from pathlib import Path

import pytest

from ortdeploy.files import content_store
from ortdeploy.files.content_store import FORGOTTEN_AFTER, ContentChangedError, ContentStore, StoreFullError


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.fixture
def store(tmp_path: Path) -> ContentStore:
    return ContentStore(tmp_path / "state")


def entries(folder: Path, name: str) -> list[str]:
    return sorted(path.name for path in (folder / "state/store" / name).iterdir())


@pytest.mark.parametrize("content", [b"", b"a", b"b" * 3_000_000])
def test_what_was_put_stays_whatever_becomes_of_the_original(
    tmp_path: Path, store: ContentStore, content: bytes
) -> None:
    original = write(tmp_path / "m.onnx", content)
    digest = store.put(original)
    assert digest == sha256(content)
    original.write_bytes(b"other")
    kept = store.find(digest)
    assert kept is not None
    assert kept.read_bytes() == content
    assert kept.stat().st_mode & 0o222 == 0
    assert entries(tmp_path, "files") == [digest]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such rights")
@pytest.mark.parametrize(("mode", "kept"), [(0o600, 0o400), (0o640, 0o440), (0o755, 0o444)])
def test_a_copy_is_read_by_those_who_may_read_the_original(
    tmp_path: Path, store: ContentStore, mode: int, kept: int
) -> None:
    original = write(tmp_path / "m.yaml", b"azure.auth_key: it")
    original.chmod(mode)
    found = store.find(store.put(original))
    assert found is not None
    assert found.stat().st_mode & 0o777 == kept


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows tells no users by number")
def test_who_may_not_read_an_entry_is_told_a_command_that_means_this_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A blank would part its name in two, and everything in both would be given away."""
    store = ContentStore(tmp_path / "the state")
    digest = sha256(b"weights")
    store.put(write(tmp_path / "model", b"weights"), digest)
    monkeypatch.setattr(ContentStore, "find", lambda *_: None)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(PermissionError, match=rf"chown -R \S+ '{tmp_path}/the state'"):
        store.required(digest)


def test_what_is_put_again_stays_the_file_that_others_have_open(tmp_path: Path, store: ContentStore) -> None:
    """Two runs that begin at the same time find nothing kept, and both put it there."""
    (tmp_path / "m.onnx").write_bytes(b"model")
    digest = store.put(tmp_path / "m.onnx")
    named = store.tree({"m.onnx": digest}) / "m.onnx"
    before = named.stat().st_ino
    assert store.put(tmp_path / "m.onnx") == digest
    assert (store.tree({"m.onnx": digest}) / "m.onnx").stat().st_ino == before


def test_a_file_that_does_not_hold_what_was_expected_leaves_nothing(tmp_path: Path, store: ContentStore) -> None:
    with pytest.raises(ContentChangedError):
        store.put(write(tmp_path / "m.onnx", b"new"), sha256(b"old"))
    assert entries(tmp_path, "files") == []


@pytest.mark.parametrize("damage", [b"", b"onf", b"two!"])
def test_a_damaged_entry_is_taken_away_and_comes_again(tmp_path: Path, store: ContentStore, damage: bytes) -> None:
    original = write(tmp_path / "m.onnx", b"one!")
    digest = store.put(original)
    tree = store.tree({"m.onnx": digest})
    kept = tmp_path / "state/store/files" / digest
    kept.chmod(0o644)
    kept.write_bytes(damage)
    assert store.find(digest) is None
    assert store.put(original) == digest
    assert store.tree({"m.onnx": digest}) == tree
    assert (tree / "m.onnx").read_bytes() == b"one!"


def test_a_tree_has_the_names_by_which_files_speak_of_each_other(tmp_path: Path, store: ContentStore) -> None:
    names = {"m.onnx": b"graph", "weights/w.bin": b"weights", "copy.bin": b"weights"}
    digests = {name: store.put(write(tmp_path / "x", content)) for name, content in names.items()}
    tree = store.tree(digests)
    assert {name: (tree / name).read_bytes() for name in names} == names
    assert store.tree(digests) == tree
    assert len(entries(tmp_path, "files")) == 2


@pytest.mark.parametrize("name", ["../m.onnx", "/m.onnx", "a/../../m.onnx"])
def test_a_tree_has_no_names_outside_of_itself(tmp_path: Path, store: ContentStore, name: str) -> None:
    digest = store.put(write(tmp_path / "m.onnx", b"one"))
    with pytest.raises(StoreFullError, match="no name below a folder"):
        store.tree({name: digest})


def test_nothing_is_opened_or_removed_through_links_and_foreign_names(tmp_path: Path, store: ContentStore) -> None:
    """The state folder may have come with a checkout."""
    mine = tmp_path / "mine"
    mine.mkdir()
    write(mine / sha256(b"x"), b"x")
    write(mine / "thesis.txt", b"x")
    folder = tmp_path / "state/store"
    folder.mkdir(parents=True)
    (folder / "files").symlink_to(mine)
    assert store.find(sha256(b"x")) is None
    assert store.find("../../../mine/thesis.txt") is None
    assert store.prune(()) == 0
    with pytest.raises(StoreFullError, match="is a link"):
        store.put(mine / "thesis.txt")
    assert len(list(mine.iterdir())) == 2
    (folder / "files").unlink()
    digest = store.put(mine / "thesis.txt")
    tree = store.tree({"a/b": digest})
    (tree / "a/b").unlink()
    (tree / "a").rmdir()
    (tree / "a").symlink_to(mine)
    with pytest.raises(StoreFullError, match="is a link"):
        store.tree({"a/b": digest})
    assert len(list(mine.iterdir())) == 2


def test_a_foreign_file_in_the_store_is_left_alone(tmp_path: Path, store: ContentStore) -> None:
    store.put(write(tmp_path / "m.onnx", b"one"))
    write(tmp_path / "state/store/files/notes.txt", b"mine")
    store.prune(())
    assert entries(tmp_path, "files") == ["notes.txt"]


def test_pruning_keeps_what_somebody_needs_and_trees_of_it(tmp_path: Path, store: ContentStore) -> None:
    one, two = (store.put(write(tmp_path / "m.onnx", content)) for content in (b"one", b"second"))
    first, second = store.tree({"m.onnx": one}), store.tree({"m.onnx": two})
    write(tmp_path / "state/store/files/.7.8.partial", b"left by a kill")
    store.refer("m.yaml run", {one, two})
    assert store.prune(store.referred()) == len(b"left by a kill")
    store.refer("m.yaml run", {two})
    store.refer("other.yaml run", {two})
    assert store.prune(store.referred()) == 3
    assert (first.exists(), (second / "m.onnx").read_bytes()) == (False, b"second")
    assert entries(tmp_path, "files") == [two]


def test_a_reference_is_renewed_without_being_written_again(tmp_path: Path, store: ContentStore) -> None:
    digest = store.put(write(tmp_path / "m.onnx", b"one"))
    store.refer("m.yaml run", {digest})
    (path,) = (tmp_path / "state/store/references").iterdir()
    written = path.stat()
    os.utime(path, (written.st_mtime - FORGOTTEN_AFTER - 60,) * 2)
    store.refer("m.yaml run", {digest})
    assert path.stat().st_ino == written.st_ino
    assert store.referred() == {digest}


def test_a_reference_that_nobody_renews_keeps_nothing(tmp_path: Path, store: ContentStore) -> None:
    digest = store.put(write(tmp_path / "m.onnx", b"one"))
    store.refer("m.yaml run", {digest})
    (path,) = (tmp_path / "state/store/references").iterdir()
    old = path.stat().st_mtime - FORGOTTEN_AFTER - 60
    os.utime(path, (old, old))
    assert store.referred() == set()


@pytest.mark.parametrize("written", [12.0, 0.0, 1e11])
def test_a_reference_from_before_the_clock_was_set_keeps_what_it_names(
    tmp_path: Path, store: ContentStore, written: float
) -> None:
    digest = store.put(write(tmp_path / "m.onnx", b"one"))
    store.refer("m.yaml run", {digest})
    (path,) = (tmp_path / "state/store/references").iterdir()
    os.utime(path, (written, written))
    assert store.referred() == {digest}


@pytest.mark.parametrize("text", ["", "[]", '{"digests": 3}', '{"digests": ["../x", 3]}', "\x00"])
def test_a_reference_that_is_damaged_keeps_nothing(tmp_path: Path, store: ContentStore, text: str) -> None:
    store.refer("m.yaml run", {"0" * 64})
    (path,) = (tmp_path / "state/store/references").iterdir()
    path.write_text(text)
    assert store.referred() == set()


def test_a_copy_takes_half_of_what_is_free_at_most(
    tmp_path: Path, store: ContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content_store, "MOST_OF_THE_DISK", 0)
    with pytest.raises(StoreFullError, match="more than half"):
        store.put(write(tmp_path / "m.onnx", b"one"))
    assert entries(tmp_path, "files") == []
    assert not store.has_room(sha256(b"one"), 3)


def test_a_file_system_that_shares_blocks_is_asked_to(
    tmp_path: Path, store: ContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl")

    def clone(target: int, request: int, source: int) -> None:
        assert request == 0x40049409
        os.pwrite(target, os.pread(source, 100, 0), 0)

    monkeypatch.setattr(fcntl, "ioctl", clone)
    monkeypatch.setattr(content_store, "MOST_OF_THE_DISK", 0)  # a clone takes no room
    digest = store.put(write(tmp_path / "m.onnx", b"one"))
    assert digest == sha256(b"one")
    assert store.find(digest) is not None


def test_an_error_of_the_disk_while_cloning_is_told(
    tmp_path: Path, store: ContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl")

    def fail(_target: int, _request: int, _source: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "ioctl", fail)
    with pytest.raises(OSError, match="Input/output error"):
        store.put(write(tmp_path / "m.onnx", b"one"))
    assert entries(tmp_path, "files") == []


def test_a_reference_of_somebody_who_is_gone_keeps_nothing(tmp_path: Path, store: ContentStore) -> None:
    one, two = (store.put(write(tmp_path / "m.onnx", content)) for content in (b"one", b"second"))
    store.refer("m.yaml run", {one}, lasting=True)
    store.refer("other.yaml run", {two})
    there = "other.yaml run".__eq__
    assert store.referred(there, dry_run=True) == {two}
    assert store.referred() == {one, two}
    assert store.referred(there) == {two}
    assert store.referred() == {two}


def test_a_lasting_reference_that_is_lost_is_written_again_and_else_left_alone(
    tmp_path: Path, store: ContentStore
) -> None:
    store.refer("last-good 1", {"0" * 64}, lasting=True)
    (path,) = (tmp_path / "state/store/references").iterdir()
    before = path.stat().st_ino, path.stat().st_mtime_ns
    store.refer("last-good 1", {"0" * 64}, lasting=True)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == before
    path.unlink()
    store.refer("last-good 1", {"0" * 64}, lasting=True)
    assert store.referred() == {"0" * 64}


def test_single_copies_have_one_name_and_come_again_if_they_are_damaged_or_linked(
    tmp_path: Path, store: ContentStore
) -> None:
    original = write(tmp_path / "w.bin", b"weights")
    names, sources = {"a/w.bin": sha256(b"weights")}, {"a/w.bin": original}
    copy = store.single(names, sources) / "a/w.bin"
    before = copy.stat().st_ino
    assert (copy.read_bytes(), copy.stat().st_nlink) == (b"weights", 1)
    assert store.single(names, {}) / "a/w.bin" == copy
    assert copy.stat().st_ino == before
    (tmp_path / "second").hardlink_to(copy)
    store.single(names, sources)
    assert (copy.stat().st_nlink, copy.stat().st_ino != before) == (1, True)
    copy.chmod(0o600)
    copy.write_bytes(b"other")
    store.single(names, sources)
    assert copy.read_bytes() == b"weights"
    copy.unlink()
    copy.symlink_to(original)
    store.single(names, sources)
    assert not copy.is_symlink()
    with pytest.raises(ContentChangedError):
        store.single({"w.bin": sha256(b"x")}, {"w.bin": original})
    with pytest.raises(StoreFullError):
        store.single({"../w.bin": sha256(b"weights")}, {"../w.bin": original})


def test_single_copies_stay_as_long_as_they_are_needed(tmp_path: Path, store: ContentStore) -> None:
    names = {"w.bin": sha256(b"weights"), "m.onnx": sha256(b"m")}
    sources = {"w.bin": write(tmp_path / "w.bin", b"weights"), "m.onnx": write(tmp_path / "m.onnx", b"m")}
    folder = store.single(names, sources)
    (folder / ".1.2.partial").write_bytes(b"of a killed run")
    assert store.sizes()[folder] == 8 + len(b"of a killed run")
    assert store.prune({folder.name}) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["m.onnx", "w.bin"]
    assert store.prune(set()) == 8
    assert not folder.exists()
