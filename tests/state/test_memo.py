"""What is remembered is as it was written, or absent."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
from support.memo_files import rewrite

from ortdeploy.state import memo

VALUE = {"a": [1, 2.5, None, "ü\udc80"]}


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memo, "KINDS", {"few": (3, 30), "other": (3, 400)})


def only_file(folder: Path) -> Path:
    (path,) = (path for path in (folder / memo.FOLDER).rglob("*") if path.is_file())
    return path


@pytest.mark.parametrize("value", [VALUE, [], 0, "", True])
def test_a_value_is_as_it_was_written(tmp_path: Path, value: Any) -> None:
    memo.put(tmp_path, "few", "a", value)
    assert memo.get(str(tmp_path), "few", "a") == value
    assert (memo.get(tmp_path, "few", "b"), memo.get(tmp_path, "other", "a")) == (None, None)
    memo.put(tmp_path, "few", "a", 2)
    assert memo.get(tmp_path, "few", "a") == 2
    memo.drop(tmp_path, "few", "a")
    memo.drop(tmp_path, "few", "a")
    assert memo.get(tmp_path, "few", "a") is None


@pytest.mark.parametrize("at", range(0, 200, 7))
def test_a_file_of_which_anything_is_changed_is_none(tmp_path: Path, at: int) -> None:
    memo.put(tmp_path, "few", "a", {"numbers": list(range(40))})
    path = only_file(tmp_path)
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    assert memo.get(tmp_path, "few", "a") is None


@pytest.mark.parametrize("content", [b"", b"\n", b"1", b"[" * 100_000, b"\0" * 500, None])
def test_a_file_that_is_none_of_ours_is_none(tmp_path: Path, content: bytes | None) -> None:
    memo.put(tmp_path, "few", "a", VALUE)
    path = only_file(tmp_path)
    path.unlink()
    path.mkdir() if content is None else path.write_bytes(content)
    assert memo.get(tmp_path, "few", "a") is None


def test_what_is_nested_too_deeply_to_read_is_none(tmp_path: Path) -> None:
    memo.put(tmp_path, "few", "a", VALUE)
    body = b"[" * 100_000
    rewrite(only_file(tmp_path), body)
    assert memo.get(tmp_path, "few", "a") is None


def test_the_file_of_one_value_under_the_name_of_another_is_none(tmp_path: Path) -> None:
    memo.put(tmp_path, "few", "a", 1)
    first = only_file(tmp_path)
    memo.put(tmp_path, "other", "b", 2)
    (second,) = (tmp_path / memo.FOLDER / "other").iterdir()
    second.write_bytes(first.read_bytes())
    assert memo.get(tmp_path, "other", "b") is None


def test_without_a_state_directory_nothing_is_remembered_and_nothing_fails(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "none", tmp_path / "file", tmp_path / "file/below"):
        memo.put(folder, "few", "a", 1)
        assert memo.get(folder, "few", "a") is None
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_what_waits_for_a_state_directory_is_remembered_once_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memo, "_waiting", {})
    monkeypatch.setattr(memo, "_MOST_WAITING", 250)
    for key in "abcd":
        memo.put(tmp_path / "state", "few", key, key)
        memo.put(tmp_path / "state-2", "other", key, key)
    (tmp_path / "state").mkdir()
    assert memo.get(tmp_path / "state", "few", "d") is None
    memo.put_waiting(tmp_path / "state")
    assert [memo.get(tmp_path / "state", "few", key) for key in "abcd"] == [None, None, None, "d"]
    assert not (tmp_path / "state-2").exists()


def test_what_was_used_last_stays(tmp_path: Path) -> None:
    for number, key in enumerate("abacd"):
        memo.put(tmp_path, "few", key, number)
        for path in (tmp_path / memo.FOLDER / "few").iterdir():
            stat = path.stat()
            os.utime(path, (stat.st_atime, stat.st_mtime - 1))  # as if a second went by
    assert [memo.get(tmp_path, "few", key) for key in "abcd"] == [2, None, 3, 4]


def test_what_was_not_used_for_long_is_no_longer_needed(tmp_path: Path) -> None:
    long_ago = time.time() - 31 * 24 * 3600
    for kind, key in (("few", "a"), ("few", "b"), ("other", "c")):
        memo.put(tmp_path, kind, key, 1)
    for path in memo.entries(tmp_path):
        os.utime(path, (long_ago, long_ago))
    assert memo.get(tmp_path, "few", "a") == 1
    assert sorted(memo.entries(tmp_path).values()) == [False, True, True]


def test_what_a_clock_that_was_ahead_has_left_goes_first(tmp_path: Path) -> None:
    ahead = time.time() + 1e7
    for key in "abc":
        memo.put(tmp_path, "few", key, key)
    for path in memo.entries(tmp_path):
        os.utime(path, (ahead, ahead))
    assert not any(memo.entries(tmp_path).values())
    assert memo.get(tmp_path, "few", "a") == "a"  # and is used now
    memo.put(tmp_path, "few", "d", "d")
    memo.put(tmp_path, "few", "e", "e")
    assert [memo.get(tmp_path, "few", key) for key in "abcde"] == ["a", None, None, "d", "e"]


@pytest.mark.parametrize("link", [memo.FOLDER, f"{memo.FOLDER}/few"])
def test_a_folder_that_is_a_link_is_not_looked_into(tmp_path: Path, link: str) -> None:
    (tmp_path / "mine/few").mkdir(parents=True)
    (tmp_path / "mine/few/file").touch()
    target = tmp_path / "mine" if link == memo.FOLDER else tmp_path / "mine/few"
    (tmp_path / link).parent.mkdir(exist_ok=True)
    (tmp_path / link).symlink_to(target)
    assert memo.entries(tmp_path) == {}


def test_what_is_too_large_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memo, "MOST_BYTES", 5)
    memo.put(tmp_path, "few", "a", "abc")
    memo.put(tmp_path, "few", "b", "abcd")
    assert (memo.get(tmp_path, "few", "a"), memo.get(tmp_path, "few", "b")) == ("abc", None)
