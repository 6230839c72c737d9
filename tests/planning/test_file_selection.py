"""What a watch sees: what it should start an apply for, and nothing else."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import MANIFEST

from ortdeploy.manifest.loader import LoadOptions
from ortdeploy.planning.file_selection import Arrivals

TEXT = MANIFEST.replace("path: data.npy", "path: [inbox/*.npy, deep/**/*.npy, http://host/x.npy]")


@pytest.fixture(name="folder")
def make_folder(tmp_path: Path) -> Path:
    for name in ("inbox", "outbox/run", "deep/er"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("double.onnx", "inbox/a.npy", "inbox/a.txt"):
        (tmp_path / name).write_bytes(b"1")
    (tmp_path / "m.yaml").write_text(TEXT)
    return tmp_path


def touched(path: Path) -> None:
    path.write_bytes(b"1")
    os.utime(path, (7, 7))


CHANGES: dict[str, tuple[Callable[[Path], object], bool]] = {
    "a file arrives": (lambda folder: touched(folder / "inbox/b.npy"), True),
    "a file arrives deep inside": (lambda folder: touched(folder / "deep/er/b.npy"), True),
    "a file changes": (lambda folder: touched(folder / "inbox/a.npy"), True),
    "a file goes": (lambda folder: (folder / "inbox/a.npy").unlink(), True),
    "the inbox goes": (lambda folder: (folder / "inbox").rename(folder / "elsewhere"), True),
    "the model changes": (lambda folder: touched(folder / "double.onnx"), True),
    "the manifest changes": (lambda folder: (folder / "m.yaml").write_text(f"{TEXT}# new\n"), True),
    "the manifest is refused": (lambda folder: (folder / "m.yaml").write_text("jobz: 1\n"), True),
    "another manifest comes": (lambda folder: (folder / "n.yaml").write_text(TEXT), True),
    "the manifest goes": (lambda folder: (folder / "m.yaml").unlink(), True),
    "nothing": (lambda _: None, False),
    "what no manifest names": (lambda folder: touched(folder / "inbox/b.txt"), False),
    "a part is written": (lambda folder: touched(folder / "outbox/run/part-00000000.jsonl"), False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_seen(folder: Path, change: str) -> None:
    arrivals = Arrivals([str(folder)], LoadOptions(digest=False))
    before = arrivals.look()
    do, is_seen = CHANGES[change]
    do(folder)
    now = arrivals.look()
    assert (now != before) is is_seen
    assert arrivals.look() == now


def test_the_path_of_a_manifest_may_have_signs_of_patterns(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    there = folder.rename(tmp_path_factory.mktemp("there") / "inbox [1]")
    arrivals = Arrivals([str(there)], LoadOptions(digest=False))
    before = arrivals.look()
    touched(there / "inbox/b.npy")
    assert arrivals.look() != before


def test_the_longest_time_for_which_files_must_be_stable(folder: Path) -> None:
    arrivals = Arrivals([str(folder)], LoadOptions(digest=False))
    assert arrivals.stable_for == 0
    (folder / "m.yaml").write_text(TEXT.replace("key: [row]", "stable_for: 2min"))
    arrivals.look()
    assert arrivals.stable_for == 120


def test_a_manifest_that_is_refused_still_has_its_inputs_looked_at(folder: Path) -> None:
    arrivals = Arrivals([str(folder / "m.yaml")], LoadOptions(digest=False))
    assert arrivals.jobs == ("run",)
    (folder / "m.yaml").write_text("jobz: 1\n")
    refused = arrivals.look()
    touched(folder / "inbox/b.npy")
    assert arrivals.look() != refused


def test_overlays_are_looked_at(folder: Path) -> None:
    overlay = folder / "elsewhere" / "o.yaml"
    overlay.parent.mkdir()
    overlay.write_text("jobs: {run: {batch: {size: 4}}}\n")
    arrivals = Arrivals([str(folder)], LoadOptions(digest=False, overlays=(str(overlay),)))
    before = arrivals.look()
    overlay.write_text("jobs: {run: {batch: {size: 16}}}\n")
    assert arrivals.look() != before


def test_a_folder_that_cannot_be_read_ends_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrivals = Arrivals([str(folder)], LoadOptions(digest=False))
    before = arrivals.look()
    with monkeypatch.context() as patch:

        def refuse(_: object) -> None:
            raise PermissionError(13, "Permission denied")

        patch.setattr(Path, "iterdir", refuse)
        assert "Permission denied" in arrivals.look()
    assert arrivals.look() == before
