"""Names of files, also as Windows has them."""

import ntpath
from types import SimpleNamespace

import pytest

from ortdeploy.files import names
from ortdeploy.files.names import relative


def test_a_path_on_another_drive_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "os", SimpleNamespace(path=ntpath, sep="\\"))
    assert relative("C:\\deployment\\in\\a.npy", "C:\\deployment") == "in/a.npy"
    assert relative("C:\\in\\a.npy", "C:\\deployment") == "../in/a.npy"
    assert relative("D:\\in\\a.npy", "C:\\deployment") == "D:/in/a.npy"
