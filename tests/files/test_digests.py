"""A remembered digest is used only while nothing about its file has changed, and never across a start of the machine."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.memo_files import memo_files, rewrite

from ortdeploy.files import digest_cache, digests
from ortdeploy.files.digest_cache import LARGE, DigestCache
from ortdeploy.files.digests import file_digest, is_digest


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were read."""
    read: list[Path] = []

    def count(path: Path) -> str:
        read.append(path)
        return file_digest(path)

    monkeypatch.setattr(digest_cache, "file_digest", count)
    return read


def large(folder: Path, last: bytes = b"a", *, old: bool = True) -> Path:
    """A sparse file that was written long ago, as far as its modification time tells; its change time is now."""
    path = folder / "weights.bin"
    with path.open("wb") as file:
        file.truncate(LARGE)
        file.seek(LARGE - 1)
        file.write(last)
    if old:
        os.utime(path, ns=(0, 0))
    return path


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on which the change time of a file that was just made lies back."""
    monkeypatch.setattr(digest_cache, "_RACY_NS", -(10**12))


@pytest.mark.usefixtures("patient")
def test_a_large_file_is_read_once(tmp_path: Path, counted: list[Path]) -> None:
    path = large(tmp_path)
    wanted = file_digest(path)
    assert [DigestCache(tmp_path / "state").digest(path) for _ in range(3)] == [wanted] * 3
    assert counted == [path]


@pytest.mark.usefixtures("patient")
def test_a_file_that_changed_is_read_again_also_with_its_old_time(tmp_path: Path, counted: list[Path]) -> None:
    path = large(tmp_path)
    before = DigestCache(tmp_path).digest(path)
    after = DigestCache(tmp_path).digest(large(tmp_path, b"b"))
    assert before != after == file_digest(path)
    assert len(counted) == 2


def test_a_file_that_changed_just_now_is_not_trusted_yet(tmp_path: Path, counted: list[Path]) -> None:
    path = large(tmp_path, old=False)
    assert DigestCache(tmp_path).digest(path) == DigestCache(tmp_path).digest(path)
    assert counted == [path, path]


@pytest.mark.usefixtures("patient")
def test_each_start_of_the_machine_reads_anew(
    tmp_path: Path, counted: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = large(tmp_path)
    DigestCache(tmp_path).digest(path)
    (tmp_path / "boot").write_text("another")
    monkeypatch.setattr(digests, "_BOOT", tmp_path / "boot")
    DigestCache(tmp_path).digest(path)
    assert len(counted) == 2
    monkeypatch.setattr(digests, "_BOOT", tmp_path / "none")
    DigestCache(tmp_path).digest(path)
    DigestCache(tmp_path).digest(path)
    assert len(counted) == 3


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("value", ["abc", [], 3, {}, {"sha256": "0" * 64}])
def test_entries_of_another_form_are_not_used(tmp_path: Path, counted: list[Path], value: object) -> None:
    path = large(tmp_path)
    DigestCache(tmp_path).digest(path)
    (entry,) = memo_files(tmp_path, "digest")
    rewrite(entry, value)
    assert DigestCache(tmp_path).digest(path) == file_digest(path)
    assert len(counted) == 2


@pytest.mark.usefixtures("patient")
def test_where_nothing_can_be_written_a_file_is_read_once_by_each(tmp_path: Path, counted: list[Path]) -> None:
    path = large(tmp_path)
    (tmp_path / "memo").touch()
    cache = DigestCache(tmp_path)
    assert cache.digest(path) == cache.digest(path)
    assert len(counted) == 1


@pytest.mark.usefixtures("patient")
def test_without_a_place_nothing_is_kept_and_nothing_fails(tmp_path: Path, counted: list[Path]) -> None:
    path = large(tmp_path)
    (tmp_path / "file").touch()
    for folder in (None, tmp_path / "file/state"):
        assert DigestCache(folder).digest(path) == DigestCache(folder).digest(path)
    assert len(counted) == 4


def test_small_files_are_always_read(tmp_path: Path, counted: list[Path]) -> None:
    path = tmp_path / "small"
    path.write_bytes(b"abc")
    os.utime(path, ns=(0, 0))
    for _ in range(2):
        assert DigestCache(tmp_path).digest(path) == file_digest(path)
    assert memo_files(tmp_path, "digest") == []
    assert len(counted) == 2


def test_a_content_is_digested_only_as_it_was_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    os.utime(path, ns=(5, 5))
    assert digests.content_digest(str(path), 3, 5) == hashlib.sha256(b"abc").digest()[:16]
    assert digests.content_digest(str(path), 3, 6) is None
    assert digests.content_digest(str(path), 2, 5) is None
    assert digests.content_digest(str(path), 4, 5) is None
    assert digests.content_digest(str(tmp_path / "b"), 3, 5) is None
    assert digests.content_digest("a\0", 3, 5) is None
    assert digests.content_digest(str(tmp_path), 3, 5) is None
    monkeypatch.setattr(digests, "_MOST_OF_A_CONTENT", 2)
    assert digests.content_digest(str(path), 3, 5) is None


def test_the_digest_of_a_content_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that ends must not take the size of its input once more."""
    content = bytes(range(256)) * 4 * 1024 * 3 + b"rest"
    path = tmp_path / "a"
    path.write_bytes(content)
    mtime = path.stat().st_mtime_ns
    asked: list[int] = []

    def read(file: int, size: int, real: Callable[[int, int], bytes] = os.read) -> bytes:
        asked.append(size)
        return real(file, size)

    monkeypatch.setattr(os, "read", read)
    for size in (len(content), 3 * 1024 * 1024, len(content) + 1):
        expected = hashlib.sha256(content).digest()[:16] if size == len(content) else None
        assert digests.content_digest(str(path), size, mtime) == expected
    assert max(asked) == 1024 * 1024


@pytest.mark.parametrize(
    "other", ["", "A" * 64, "a" * 63, "a" * 65, "a" * 63 + "\n", "a" * 30 + "g" + "a" * 33, "٣" * 64, None, 1]
)
def test_a_digest_has_64_hexadecimal_digits(other: object) -> None:
    assert is_digest("0123456789abcdef" * 4)
    assert not is_digest(other)
