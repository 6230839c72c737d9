"""Rows of a page: read from parts as they are, with their pictures, boxes and recordings."""

import wave
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from PIL import Image
from support.fakes import FakeRuntime, refuse_negative
from support.jobs import changed_job, execute, plan_for, save, written_as

from ortdeploy.facts.data import FileState
from ortdeploy.ledger.opening import open_ledger
from ortdeploy.ledger.records import OutputRecord
from ortdeploy.plan.steps import RunJob
from ortdeploy.reports import gallery
from ortdeploy.reports.gallery import examples


def ran(folder: Path, kind: str = "jsonl", rows: int = 100) -> tuple[OutputRecord, RunJob]:
    """Run a job whose rows ending with 3 fail; return its record and step."""
    save(folder, [-1.0 if row % 10 == 3 else float(row) for row in range(rows)])
    plan = written_as(plan_for(folder, rows, max_failed=100, rows_per_part=8), kind)
    execute(folder, plan, FakeRuntime(refuse_negative))
    with open_ledger(folder / ".ortdeploy") as ledger:
        record = ledger.output(ledger.key(folder / "out"))
    step = plan.steps[-1]
    assert record is not None
    assert isinstance(step, RunJob)
    return record, step


@pytest.mark.parametrize("kind", ["jsonl", "csv", "npz", "parquet", "arrow"])
def test_rows_of_first_middle_and_last_parts_are_shown(tmp_path: Path, kind: str) -> None:
    record, step = ran(tmp_path, kind)
    found = examples(tmp_path / "out", str(tmp_path), record, step)
    rows = [int(one.values["row"]) for one in found]
    assert len(found) == 12 - (len(rows) < 12)  # the last part has four rows, of which one failed
    assert rows == sorted(rows)
    assert rows[0] == 0
    assert rows[-1] > 95
    assert not any(row % 10 == 3 for row in rows)
    assert sorted(found[1].values.values()) == (["1", "2.0", "2.0"] if kind == "csv" else ["1", "[2, 2]"])


def test_parts_that_were_carried_away_are_left_out(tmp_path: Path) -> None:
    record, step = ran(tmp_path)
    for part in record.parts[1:]:
        (tmp_path / "out" / str(part.file)).unlink()
    found = examples(tmp_path / "out", str(tmp_path), record, step)
    assert [one.values["row"] for one in found] == [str(row) for row in (0, 1, 2, 4, 5, 6, 7)]


def of_files(step: RunJob, kind: str, names: list[str]) -> RunJob:
    """Return the job as if each of its rows were a file."""
    states = tuple(FileState(path=name, size=1, mtime_ns=1) for name in names)
    return changed_job(step, input={"format": kind, "files": states})


def test_pictures_are_small_and_have_their_boxes(tmp_path: Path) -> None:
    record, step = ran(tmp_path, rows=8)
    part = tmp_path / "out" / str(record.parts[0].file)
    part.write_text("".join(f'{{"row": {row}, "y": [[10, 20, 400, 300]]}}\n' for row in (0, 1, 2, 4)))
    for row in range(8):
        Image.new("RGB", (1000 + row, 500), "teal").save(tmp_path / f"{row}.png")
    (tmp_path / "2.png").write_bytes((tmp_path / "2.png").read_bytes()[:500])  # cut since
    (tmp_path / "4.png").unlink()  # gone since
    job = of_files(step, "image", [f"{row}.png" for row in range(8)])
    found = examples(tmp_path / "out", str(tmp_path), record, job)
    assert [one.name for one in found] == ["0.png", "1.png", "2.png", "4.png"]
    pictures = [one.picture for one in found if one.picture is not None]
    assert len(pictures) == 2
    first = pictures[0]
    assert found[2].picture is found[3].picture is None
    assert (first.width, first.height) == (1000, 500)
    assert [list(outline) for outline in first.outlines] == [[(10, 20), (400, 20), (400, 300), (10, 300)]]
    assert first.url.startswith("data:image/jpeg;base64,")
    assert len(first.url) < 20_000
    assert found[0].values["y"] == "1"  # box


def test_recordings_show_their_loudness(tmp_path: Path) -> None:
    record, step = ran(tmp_path, rows=8)
    sound = np.concatenate([np.zeros(8000), np.full(8000, 16384)]).astype("<i2")
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(sound.tobytes())
    job = of_files(step, "wav", ["a.wav"] * 8)
    first = examples(tmp_path / "out", str(tmp_path), record, job)[0]
    assert first.seconds == 1.0
    assert len(first.envelope) == 160
    assert (first.envelope[0], first.envelope[-1]) == ((0.0, 0.0), (0.5, 0.5))


def with_page(folder: Path) -> str:
    """Run a job that asks for a page, and return it."""
    save(folder, range(8))
    plan = plan_for(folder, 8)
    step = plan.steps[-1]
    assert isinstance(step, RunJob)
    plan = replace(plan, steps=(*plan.steps[:-1], changed_job(step, output={"reports": ("html",)})))
    assert execute(folder, plan, FakeRuntime(refuse_negative)).status == "done"
    return (folder / "out/_run.html").read_text()


def test_a_page_shows_committed_rows(tmp_path: Path) -> None:
    assert with_page(tmp_path).count("<figure><figcaption>") == 8


def test_a_page_that_cannot_show_rows_says_why_and_the_job_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def examples_of(*_: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(gallery, "examples", examples_of)
    assert "They cannot be shown: the disk is gone" in with_page(tmp_path)
