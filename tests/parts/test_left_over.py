"""What is left of a job with nothing to run is completed, and its reports are written."""

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.fakes import FakeRuntime, refuse_negative
from support.jobs import execute, failed, plan_for, save
from support.ledgers import BAD, ROWS, finished, merging
from support.logs import capture_logs

from ortdeploy.ledger.opening import open_ledger, read_outputs
from ortdeploy.parts.left_over import add_reports, complete_left_over
from ortdeploy.plan.steps import JobOutput, RunJob
from ortdeploy.reports.catalogue import REPORTS


@pytest.fixture(name="folder")
def with_input(tmp_path: Path) -> Path:
    save(tmp_path, [-1.0 - row if row in BAD else float(row) for row in range(ROWS)])
    return tmp_path


def output_of(folder: Path) -> JobOutput:
    return next(one.output for one in plan_for(folder, ROWS, max_failed=9).steps if isinstance(one, RunJob))


def call(folder: Path, do: Callable[..., None], output: JobOutput) -> list[str]:
    """Do something with the output; return what was logged."""
    with open_ledger(folder / ".ortdeploy") as ledger, capture_logs() as events:
        do(ledger, folder / "out", output)
    return [event["event"] for event in events]


def test_a_retry_that_was_killed_is_completed_with_its_report(folder: Path) -> None:
    merging(folder)
    (before,) = read_outputs(folder / ".ortdeploy")
    assert len(before.rewrites) == 1
    assert "output.completed" in call(folder, complete_left_over, output_of(folder))
    (after,) = read_outputs(folder / ".ortdeploy")
    assert after.rewrites == ()
    assert after.failed < before.failed
    assert len(failed(folder)) == after.failed
    assert list((folder / "out").glob(".*")) == []


def test_hidden_files_alone_are_left_over_too(folder: Path) -> None:
    finished(folder)
    (folder / "out/.part-00000000.jsonl.replaced").write_text("litter")
    assert "output.completed" in call(folder, complete_left_over, output_of(folder))
    assert list((folder / "out").glob(".*")) == []


def test_where_nothing_is_left_nothing_is_written(folder: Path) -> None:
    finished(folder)
    before = {path: path.stat().st_mtime_ns for path in (folder / "out").iterdir()}
    assert call(folder, complete_left_over, output_of(folder)) == []
    assert {path: path.stat().st_mtime_ns for path in (folder / "out").iterdir()} == before


def test_reports_that_are_asked_for_after_the_job_are_made_of_its_last_run(folder: Path) -> None:
    execute(folder, plan_for(folder, ROWS, max_failed=9), FakeRuntime(refuse_negative))
    output = replace(output_of(folder), reports=("html",))
    assert not (folder / "out" / REPORTS["html"].FILE).exists()
    call(folder, add_reports, output)
    assert "the page was asked for when the job had ended" in (folder / "out" / REPORTS["html"].FILE).read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize("do", [add_reports, complete_left_over])
def test_an_output_that_the_ledger_does_not_know_is_left_alone(folder: Path, do: Callable[..., None]) -> None:
    (folder / "out").mkdir()
    (folder / "out/.part-00000000.jsonl.replaced").touch()
    assert call(folder, do, replace(output_of(folder), reports=("html",))) == []
    assert [path.name for path in (folder / "out").iterdir()] == [".part-00000000.jsonl.replaced"]
