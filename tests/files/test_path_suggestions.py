"""What is told of a path that leads nowhere: a name that is like it, or what paths do not take."""

import os
from pathlib import Path

import pytest

from ortdeploy.files import path_suggestions
from ortdeploy.files.path_suggestions import advice_on_path


@pytest.fixture(name="folder")
def folder_of_models(tmp_path: Path) -> Path:
    for name in (
        *("models/digits.onnx", "models/detector.onnx", "models/labels.txt", "models/v1.2/net.onnx"),
        ".hidden/a.onnx",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "labels.txt").touch()
    (tmp_path / "v1.2.onnx").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("models/digit.onnx", " Did you mean models/digits.onnx?"),
        ("models/Digits.onnx", " Did you mean models/digits.onnx?"),
        ("models/digits.ort", " Did you mean models/digits.onnx?"),
        ("model/digits.onnx", " Did you mean models/digits.onnx?"),
        ("models/v12/net.onnx", " Did you mean models/v1.2/net.onnx?"),
        ("models/zebra.onnx", ""),
        ("nowhere/at/all.onnx", ""),
        ("models/v1.2/net.onnx/weights", ""),
        ("~/models/digits.onnx", " A path takes neither ~ nor variables."),
        ("$HOME/digits.onnx", " A path takes neither ~ nor variables."),
        pytest.param(
            "models\\digits.onnx",
            " Write / between folders.",
            marks=pytest.mark.skipif(os.sep != "/", reason="Windows reads it as a path"),
        ),
        ("model/*.onnx", " Did you mean models/*.onnx?"),
        ("hiden/*.onnx", ""),
        (".hiden/*.onnx", " Did you mean .hidden/*.onnx?"),
        ("models/digit*.onnx", ""),
        ("models/**/*.ort", ""),
        ("label/*.png", ""),  # labels.txt is no folder
        ("v1.3.onnx", ""),  # v1.2.onnx is none but a folder
    ],
)
def test_a_path_that_leads_nowhere_is_told_what_is_near(folder: Path, written: str, told: str) -> None:
    assert advice_on_path(written, str(folder / written)) == told


def test_a_pattern_in_another_case_is_told_of_a_file(folder: Path) -> None:
    told = advice_on_path("models/v1.2/*.ONNX", str(folder / "models/v1.2/*.ONNX"))
    assert told == " net.onnx is there: letters of upper and lower case are not the same."


def test_a_path_from_the_root_stays_one(folder: Path) -> None:
    written = str(folder / "modls/digits.onnx")
    assert advice_on_path(written, written) == f" Did you mean {folder.as_posix()}/models/digits.onnx?"


def test_a_folder_of_data_is_not_compared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = str(folder / "models/v12/net.onnx")
    monkeypatch.setattr(path_suggestions, "_MOST", 4)  # three files and a folder
    assert advice_on_path(written, written).endswith("models/v1.2/net.onnx?")
    monkeypatch.setattr(path_suggestions, "_MOST", 3)
    assert advice_on_path(written, written) == ""
