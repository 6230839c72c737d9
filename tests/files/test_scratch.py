"""Scratch folders: deleted by whoever made them, or by the next process if that one was killed."""

import os
import signal
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from support.forks import Fork

from ortdeploy.files.scratch import scratch_folder


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_scratch_folder_goes_with_what_is_in_it(place: Path) -> None:
    with suppress(KeyError), scratch_folder("try") as scratch:
        (scratch.path / "rows").write_text("1")
        raise KeyError
    assert not list(place.iterdir())


def test_what_is_kept_stays_until_the_next_one(place: Path) -> None:
    with scratch_folder("try") as first:
        first.keep = True
    assert list(place.iterdir()) == [first.path]
    with scratch_folder("init"):
        assert first.path.is_dir()
    with scratch_folder("try") as second:
        assert list(place.iterdir()) == [second.path]


def test_folders_in_use_and_those_of_other_purposes_stay(place: Path) -> None:
    (place / "mine").mkdir()
    (place / "ortdeploy-try-link").symlink_to(place / "mine")
    (place / "ortdeploy-try-file").touch()
    with scratch_folder("try") as first, scratch_folder("try") as second:
        assert first.path != second.path
        assert first.path.is_dir()
    assert {one.name for one in place.iterdir()} == {"mine", "ortdeploy-try-link", "ortdeploy-try-file"}


@pytest.mark.process
def test_the_folder_of_a_killed_process_goes_with_the_next_one(place: Path) -> None:
    def die() -> None:
        with scratch_folder("try") as scratch:
            (scratch.path / "rows").write_text("1")
            os.kill(os.getpid(), signal.SIGKILL)

    with Fork(die) as process:
        assert process.wait() == -signal.SIGKILL
    assert len(list(place.iterdir())) == 1
    with scratch_folder("try"):
        assert len(list(place.iterdir())) == 1
    assert not list(place.iterdir())
