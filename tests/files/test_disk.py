"""Free disk space of folders that need not exist."""

from pathlib import Path

from ortdeploy.files.disk import free_bytes


def test_a_folder_that_does_not_exist_yet_has_the_space_of_its_parent(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "not" / "yet") is not None


def test_a_name_that_no_file_can_have_is_passed_over(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / ("a" * 5000)) is not None
