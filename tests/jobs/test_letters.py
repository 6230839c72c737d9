"""Dead letters of another machine: its failed rows run here, those that are here and not committed yet, each once."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.fakes import FakeRuntime, double, refuse_negative
from support.jobs import Killed, changed, execute, failed, plan_for, retrying, rows, save
from support.logs import capture_logs
from support.upstream_jobs import killing

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import FileState
from ortdeploy.files.digests import content_digest
from ortdeploy.jobs.job_report import JobReport
from ortdeploy.ledger.letters import read_letters
from ortdeploy.ledger.opening import open_ledger, read_ledger
from ortdeploy.plan.made_by import made_by
from ortdeploy.plan.selection import run_jobs, with_letters
from ortdeploy.plan.steps import DeadLetter, Plan
from ortdeploy.results.results import JobResult, Status
from ortdeploy.sources.files import file_states

ROWS = 20
BAD = (3, 4, 11)
"""Rows that fail at first, in two parts."""


def values() -> list[float]:
    return [-1.0 - row if row in BAD else float(row) for row in range(ROWS)]


def machine(folder: Path) -> Plan:
    folder.mkdir()
    save(folder, values())
    return plan_for(folder, ROWS, max_failed=ROWS)


@pytest.fixture
def there(tmp_path: Path) -> tuple[DeadLetter, ...]:
    """The dead letters of another machine."""
    folder = tmp_path / "there"
    execute(folder, machine(folder), FakeRuntime(refuse_negative))
    return read_letters(str(folder / "out/_failed.jsonl"))


@pytest.fixture
def here(tmp_path: Path, there: tuple[DeadLetter, ...]) -> Path:
    """A machine with the same files, on which nothing has run."""
    assert there
    machine(tmp_path / "here")
    shutil.copy2(tmp_path / "there/data.npy", tmp_path / "here")
    return tmp_path / "here"


def retry(folder: Path, letters: tuple[DeadLetter, ...], runtime: FakeRuntime | None = None) -> JobResult:
    plan = retrying(with_letters(plan_for(folder, ROWS, max_failed=ROWS), letters))
    return execute(folder, plan, runtime or FakeRuntime(double))


def left(folder: Path, letters: tuple[DeadLetter, ...], **settings: Any) -> list[tuple[str, int, str]]:
    """What the log says of letters that are not run: the file, how many, and why."""
    with capture_logs() as logs:
        retry(folder, letters, **settings)
    return [(one["source"], one["count"], one["reason"]) for one in logs if one["event"] == "row.not_taken"]


def test_every_line_says_where_its_row_is(tmp_path: Path, there: tuple[DeadLetter, ...]) -> None:
    for line, row in zip(failed(tmp_path / "there"), BAD, strict=True):
        assert (line["path"], line["row"], line["row_in_file"], line["key"]) == ("data.npy", row, row, {"row": row})
        assert line["run"] == "r1"
        assert len(line["plan"]) == len(line["sha256"]) == 64
    assert [(one.path, one.file_row) for one in there] == [("data.npy", row) for row in BAD]


def test_rows_that_failed_elsewhere_run_here_once(here: Path, there: tuple[DeadLetter, ...]) -> None:
    assert retry(here, there).status is Status.DONE
    assert rows(here) == [(number, -2.0 - 2 * row) for number, row in enumerate(BAD)]
    assert not failed(here)
    again = FakeRuntime(double)
    assert left(here, there, runtime=again) == [("data.npy", 3, "it is committed here already")]
    assert not any(session.batches for session in again.sessions)
    assert retry(here, there).status is Status.NOTHING_TO_DO
    with read_ledger(here / ".ortdeploy") as ledger:
        assert ledger is not None
        (file,) = ledger.inputs("../out")
    assert file.done, "apply does not read the file"


def test_a_file_whose_rows_were_taken_is_known_by_what_it_held(here: Path, there: tuple[DeadLetter, ...]) -> None:
    retry(here, there)
    (state,) = file_states([str(here / "data.npy")], str(here))
    with open_ledger(here / ".ortdeploy") as ledger:
        assert ledger.contents(ledger.key(here / "out")) == {state: content_digest(str(here / "data.npy"), *state[1:])}


@pytest.mark.slow
def test_rows_that_fail_here_too_are_dead_letters_of_this_machine(here: Path, there: tuple[DeadLetter, ...]) -> None:
    retry(here, there, FakeRuntime(refuse_negative))
    assert [(one["row"], one["row_in_file"], one["attempts"]) for one in failed(here)] == [
        (0, 3, 1),
        (1, 4, 1),
        (2, 11, 1),
    ]
    execute(here, retrying(plan_for(here, ROWS)), FakeRuntime(double))
    assert rows(here) == [(number, -2.0 - 2 * row) for number, row in enumerate(BAD)]


@pytest.mark.slow
def test_of_rows_that_failed_here_only_those_that_are_named_run(here: Path, there: tuple[DeadLetter, ...]) -> None:
    execute(here, plan_for(here, ROWS, max_failed=ROWS), FakeRuntime(refuse_negative))
    assert retry(here, there[1:2]).status is Status.DONE
    assert [row for row, _ in rows(here)] == [row for row in range(ROWS) if row not in {3, 11}]
    assert all(value == 2 * values()[row] for row, value in rows(here))
    assert [one["row"] for one in failed(here)] == [3, 11]


def test_what_is_not_here_or_something_else_is_named(here: Path, there: tuple[DeadLetter, ...]) -> None:
    save(here, range(ROWS))
    assert left(here, there) == [("data.npy", 3, "the file holds something else here than where it failed")]
    (here / "data.npy").unlink()
    assert left(here, there) == [("data.npy", 3, "the file is not here")]
    assert not (here / "out").exists()


def test_a_path_that_leads_out_of_the_tree_is_not_read(here: Path, there: tuple[DeadLetter, ...]) -> None:
    ((_, _, reason),) = left(
        here, tuple(DeadLetter(**{**_fields(one), "path": "../there/data.npy"}) for one in there[:1])
    )
    assert "out of" in reason or "outside" in reason


def _fields(letter: DeadLetter) -> dict[str, Any]:
    return {name: getattr(letter, name) for name in DeadLetter.__struct_fields__}


def test_an_output_that_apply_is_not_through_with_comes_first(here: Path, there: tuple[DeadLetter, ...]) -> None:
    plan = plan_for(here, ROWS)
    (step,) = run_jobs(plan)
    (here / "out").mkdir()
    with open_ledger(here / ".ortdeploy") as ledger:
        other = FileState(path="other.npy", size=1, mtime_ns=1)
        ledger.begin("../out", made_by=made_by(plan, step), job="run", run="r0", files=[other])
    result = retry(here, there)
    assert result.status is Status.FAILED
    assert "apply is not through" in str(result.reason)


@pytest.mark.quick("True")
@pytest.mark.parametrize("removable", [False, True])
def test_a_kill_at_any_moment_loses_and_doubles_nothing(
    here: Path, there: tuple[DeadLetter, ...], removable: bool
) -> None:
    plan = retrying(with_letters(plan_for(here, ROWS, max_failed=ROWS), there))
    plan = changed(plan, output={"removable": removable})
    moment = 0
    while True:
        try:
            with killing(moment):
                execute(here, plan, FakeRuntime(double))
            break
        except Killed:
            moment += 1
            execute(here, plan, FakeRuntime(double))
            assert rows(here) == [(number, -2.0 - 2 * row) for number, row in enumerate(BAD)], moment
            shutil.rmtree(here / "out")
            shutil.rmtree(here / ".ortdeploy")
    assert moment >= 8


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", r":1 is not JSON"),
        ("[]", r":1 is no line of a _failed.jsonl"),
        (json.dumps({"path": "a"}), r'"key" is missing'),
    ],
)
def test_a_file_of_something_else_is_refused_in_words(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "f.jsonl").write_text(f"{line}\n")
    with pytest.raises(OrtdeployError, match=words):
        read_letters(str(tmp_path / "f.jsonl"))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OrtdeployError, match=r"none\.jsonl cannot be read"):
        read_letters(str(tmp_path / "none.jsonl"))


@pytest.mark.slow
def test_a_retry_of_letters_that_was_killed_before_its_report_leaves_none_from_before(
    here: Path, there: tuple[DeadLetter, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are committed, so that the next one has nothing to run; what it finds in the report is renewed."""
    execute(here, plan_for(here, ROWS, max_failed=ROWS), FakeRuntime(refuse_negative))

    def killed(_self: JobReport) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(JobReport, "write", killed)
        with pytest.raises(Killed):
            retry(here, there)
    assert len(failed(here)) == len(BAD), "the report from before"
    assert retry(here, there).status is Status.NOTHING_TO_DO
    assert not failed(here)
