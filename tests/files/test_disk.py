"""Free disk space of folders that need not exist, and what to do about a disk that fails."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from ortdeploy.diagnostics import OrtdeployError, failure_at
from ortdeploy.files.disk import advice_on_disk, free_bytes
from ortdeploy.ledger.output_lock import hold_output

READ_ONLY = getattr(os, "ST_RDONLY", 1)


def test_a_folder_that_does_not_exist_yet_has_the_space_of_its_parent(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "not" / "yet") is not None


def test_a_name_that_no_file_can_have_is_passed_over(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / ("a" * 5000)) is not None


@pytest.mark.skipif(not hasattr(os, "statvfs"), reason="the system tells of no files and of no mount")
@pytest.mark.parametrize(
    ("number", "disk", "advice"),
    [
        (errno.ENOSPC, (0, 9, 1), "; make room on its disk"),
        (errno.ENOSPC, (0, 9, 0), "; its disk takes no more files, see df -i: remove some that nobody needs"),
        (errno.ENOSPC, (0, 0, 0), "; make room on its disk"),  # as Btrfs, which counts none
        (errno.EROFS, (0, 9, 9), "; its disk is mounted read-only: see dmesg for why"),
        (None, (READ_ONLY, 9, 0), "; its disk is mounted read-only: see dmesg for why"),
        (None, (0, 9, 0), "; its disk takes no more files, see df -i: remove some that nobody needs"),
        (None, (0, 9, 9), ""),
        (errno.EDQUOT, (READ_ONLY, 9, 0), "; make room within this user's quota"),
        (errno.EIO, (0, 9, 0), "; its disk fails, or this user's quota is used up: see dmesg"),
        (errno.ENOENT, (READ_ONLY, 9, 0), ""),
    ],
)
def test_what_to_do_about_a_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int | None, disk: tuple[int, int, int], advice: str
) -> None:
    found = SimpleNamespace(**dict(zip(("f_flag", "f_files", "f_favail"), disk, strict=True)))
    monkeypatch.setattr(os, "statvfs", {tmp_path: found}.__getitem__)
    place = tmp_path / "not" / "yet"
    assert advice_on_disk(number, place) == advice
    if number is not None:
        assert failure_at(place, OSError(number, "no", None)) == f"{place}: no{advice}"
        assert failure_at("elsewhere", OSError(number, "no", str(place))) == f"{place}: no{advice}"


@pytest.mark.skipif(not hasattr(os, "statvfs"), reason="the system tells of no files and of no mount")
def test_a_lock_that_finds_no_room_says_where_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "locks").mkdir()
    monkeypatch.setattr("ortdeploy.ledger.output_lock.database", lambda path: path / "no-such-folder")
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=0, f_files=9, f_favail=0))
    said = r"locks.*\.db cannot be used: unable to open database file; its disk takes no more files"
    with pytest.raises(OrtdeployError, match=said), hold_output(tmp_path, "out"):
        pass
