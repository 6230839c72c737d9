"""Files that get their names when they are whole."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

import pytest

from ortdeploy.files.atomic import open_cached, open_whole, remove_temporaries


@pytest.mark.parametrize("opened", [open_whole, open_cached])
def test_two_that_write_a_file_at_once_do_not_disturb_each_other(
    tmp_path: Path, opened: Callable[[Path], AbstractContextManager[BinaryIO]]
) -> None:
    """As two machines do that finish a plan in one folder."""
    path = tmp_path / "_run.json"
    with opened(path) as file:
        file.write(b"a longer report")
        with opened(path) as other:
            other.write(b"a report")
        assert path.read_bytes() == b"a report"
    assert path.read_bytes() == b"a longer report"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_kill_left_is_removed(tmp_path: Path) -> None:
    with open_whole(tmp_path / "_run.json"):
        (left,) = tmp_path.iterdir()
        left.with_name(f"{left.name[:-9]}1.partial").touch()
    remove_temporaries(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["_run.json"]
