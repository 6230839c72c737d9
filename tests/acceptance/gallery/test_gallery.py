"""The gallery is whole: every manifest is valid without its model, says where that is from, and stands in the tables."""

import re
from pathlib import Path

import fetch
import pytest
from conftest import Cli
from installed import MissingPackageError, file_of, package
from support.gallery import GALLERY

MANIFESTS = sorted(GALLERY.glob("*.yaml"))
PAGE = GALLERY / "README.md"


def lines_of(manifest: Path) -> int:
    """Return how many lines say something: comments and empty lines do not count."""
    lines = manifest.read_text(encoding="utf-8").splitlines()
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in lines)


def test_there_are_a_dozen_and_each_can_be_fetched() -> None:
    assert len(MANIFESTS) >= 12
    assert {path.stem for path in MANIFESTS} == set(fetch.MODELS)
    assert list(fetch.MODELS) == sorted(fetch.MODELS)


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_a_manifest_is_valid_without_its_model(cli: Cli, manifest: Path, tmp_path: Path) -> None:
    copied = tmp_path / manifest.name
    copied.write_bytes(manifest.read_bytes())
    done = cli("validate", copied)
    assert done.code == 0, done.out
    assert "0 errors, 0 warnings" in done.out


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_a_manifest_says_where_its_model_is_from_and_what_it_is_compared_with(manifest: Path) -> None:
    head = manifest.read_text(encoding="utf-8").split("version: 1")[0]
    assert re.search(r"^# Models?: .*\.onnx of the package|^# Model: made by fetch\.py", head, re.MULTILINE)
    assert re.search(r"\((MIT|Apache-2\.0|BSD-3-Clause)", head)
    assert re.search(r"^# Reference: ", head, re.MULTILINE)
    assert f"name: {manifest.stem}\n" in manifest.read_text(encoding="utf-8")
    assert f"inbox/{manifest.stem}" in manifest.read_text(encoding="utf-8")
    assert f"outbox/{manifest.stem}" in manifest.read_text(encoding="utf-8")


def test_the_table_has_every_manifest_with_its_lines() -> None:
    rows = re.findall(r"^\| \[([a-z0-9-]+)\]\(.*?\1\.yaml\) \|.*\| (\d+) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert {name: int(lines) for name, lines in rows} == {path.stem: lines_of(path) for path in MANIFESTS}
    assert len(rows) == len(MANIFESTS)


def test_a_package_that_is_missing_is_named_with_what_installs_it() -> None:
    with pytest.raises(MissingPackageError, match="The package a-wheel is not installed: pip install a-wheel"):
        package("not_there_at_all", "a-wheel")
    with pytest.raises(MissingPackageError, match=r"This version of onnx has no models/\*\.onnx"):
        file_of("onnx", "onnx", "models/*.onnx")


@pytest.mark.parametrize(
    ("given", "words"),
    [([], "name manifests, or say --all"), (["wyne"], "no manifest here is called wyne; there are breast-cancer")],
)
def test_a_call_that_says_nothing_known_is_refused(
    capsys: pytest.CaptureFixture[str], given: list[str], words: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        fetch.main(given)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_what_could_not_be_fetched_is_told_and_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(fetch, "HERE", tmp_path)
    monkeypatch.setitem(fetch.MODELS, "wine", (fetch.made("wine", not_there_at_all="a-wheel"),))
    monkeypatch.setitem(fetch.MODELS, "ocr", (fetch.DEGREES,))
    with pytest.raises(SystemExit) as ended:
        fetch.main(["wine", "ocr"])
    assert ended.value.code == 1
    told = capsys.readouterr()
    assert "wine: The package a-wheel is not installed: pip install a-wheel" in told.err
    assert f"ocr: in {tmp_path / 'models'}" in told.out


def test_a_file_of_a_package_is_copied_under_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fetch.MODELS, "wine", (fetch.shipped("onnx", "onnx", "onnx.proto", "wine.onnx"),))
    fetch.fetch("wine", tmp_path)
    (copied,) = (tmp_path / "models").iterdir()
    assert copied.name == "wine.onnx"
    assert copied.read_bytes() == file_of("onnx", "onnx", "onnx.proto").read_bytes()


def test_labels_are_written_one_a_line(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    fetch.DEGREES(tmp_path)
    assert (tmp_path / "models/text-direction.txt").read_text() == "0\n180\n"
