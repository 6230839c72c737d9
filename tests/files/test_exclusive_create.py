"""Files that one process of many creates: the first one's bytes stand."""

import os
import threading
from pathlib import Path

import pytest

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.exclusive_create import check_decides, create_only


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_first_bytes_stand(tmp_path: Path) -> None:
    assert create_only(tmp_path / "one", b"first")
    assert not create_only(tmp_path / "one", b"second")
    assert (tmp_path / "one").read_bytes() == b"first"
    assert names(tmp_path) == ["one"]


def test_of_many_at_the_same_moment_one_is_first(tmp_path: Path) -> None:
    barrier, won = threading.Barrier(8), []

    def race(who: int) -> None:
        for key in range(20):
            barrier.wait()
            if create_only(tmp_path / str(key), str(who).encode()):
                won.append((key, who))

    threads = [threading.Thread(target=race, args=(who,)) for who in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(key for key, _ in won) == list(range(20))
    assert all((tmp_path / str(key)).read_bytes() == str(who).encode() for key, who in won)
    assert len(names(tmp_path)) == 20


def test_a_link_whose_answer_was_lost_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def lossy(source: Path, target: Path) -> None:
        link(source, target)
        raise FileExistsError(17, "sent again by NFS")

    monkeypatch.setattr(os, "link", lossy)
    assert create_only(tmp_path / "one", b"mine")
    assert names(tmp_path) == ["one"]


def test_a_link_whose_answer_was_lost_counts_though_the_number_of_links_is_an_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, stat = os.link, Path.stat

    def lossy(source: Path, target: Path) -> None:
        link(source, target)
        raise TimeoutError(110, "no answer")

    def remembered(path: Path, **more: bool) -> os.stat_result:
        found = list(stat(path, **more))
        found[3] = 1
        return os.stat_result(found)

    monkeypatch.setattr(os, "link", lossy)
    monkeypatch.setattr(Path, "stat", remembered)
    assert create_only(tmp_path / "one", b"mine")
    assert names(tmp_path) == ["one"]


def test_a_link_that_failed_is_an_error_and_no_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "link", broken)
    with pytest.raises(OSError, match="Input/output error"):
        create_only(tmp_path / "one", b"mine")
    assert names(tmp_path) == []


def test_a_file_system_without_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    check_decides(tmp_path)
    monkeypatch.setattr(os, "link", none)
    with pytest.raises(OrtdeployError, match="makes no hard links"):
        check_decides(tmp_path)
    assert names(tmp_path) == []


def test_a_place_that_lets_everybody_create_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", os.replace)  # as a store that ignores the condition
    with pytest.raises((OrtdeployError, FileNotFoundError)):
        check_decides(tmp_path)
