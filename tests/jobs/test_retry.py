"""Failed rows run once more and go into their parts, at their places, in every format and through every interruption."""

import errno
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.effort import effort
from support.fakes import Counter, FakeRuntime, double, refuse_negative
from support.jobs import (
    READ,
    Killed,
    changed,
    execute,
    failed,
    plan_for,
    plan_with_sessions,
    report,
    retrying,
    rows,
    save,
    written_as,
)

from ortdeploy.diagnostics import ProviderFailedError
from ortdeploy.jobs.job_report import JobReport
from ortdeploy.ledger import ledger as ledger_module
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.opening import read_outputs
from ortdeploy.parts import recovery
from ortdeploy.results.results import Status
from ortdeploy.sinks.catalogue import SINKS


def parts(folder: Path, kind: str) -> list[Any]:
    return [row for path in sorted((folder / "out").glob("part-*")) for row in READ[kind](path)]


def test_every_format_can_be_merged() -> None:
    assert set(READ) | {"npy"} == set(SINKS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", READ)
def test_rows_that_pass_now_are_put_at_their_places(tmp_path: Path, kind: str) -> None:
    save(tmp_path, [0, -1, -2, 3, 4, 5, 6, 7, -8, -9, -10, -11, -12, -13, -14, -15, 16, -17, 18])
    plan = written_as(plan_for(tmp_path, 19, max_failed=20), kind)
    assert execute(tmp_path, plan, FakeRuntime(refuse_negative)).failed == 11
    assert parts(tmp_path, kind) == [0, 3, 4, 5, 6, 7, 16, 18]
    result = execute(tmp_path, retrying(plan), FakeRuntime(double))
    assert (result.status, result.committed, result.failed) == (Status.DONE, 19, 0)
    assert parts(tmp_path, kind) == list(range(19))
    assert failed(tmp_path) == []
    assert report(tmp_path)["rows"] == {"input": 19, "committed": 19, "failed": 0, "skipped": 0}
    assert [path.name for path in (tmp_path / "out").glob(".*")] == []
    again = execute(tmp_path, retrying(plan), FakeRuntime(double))
    assert (again.status, again.reason) == (Status.NOTHING_TO_DO, "no row in out has failed")


def test_a_retry_without_failed_rows_says_that_its_report_finds_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, range(3))
    plan = plan_for(tmp_path, 3)
    assert execute(tmp_path, plan, FakeRuntime(double)).status is Status.DONE

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(JobReport, "write", full)
    result = execute(tmp_path, retrying(plan), FakeRuntime(double))
    assert (result.status, result.committed) == (Status.FAILED, 3)
    assert "out: No space left on device" in (result.reason or "")
    assert execute(tmp_path, plan, FakeRuntime(double)).status is Status.NOTHING_TO_DO


def test_a_retry_is_the_last_run_and_one_with_nothing_to_do_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, [0, -1, 2])
    plan = plan_for(tmp_path, 3, max_failed=1)
    execute(tmp_path, plan, FakeRuntime(refuse_negative))

    def ended() -> str | None:
        (known,) = read_outputs(tmp_path / ".ortdeploy")
        told = report(tmp_path)
        assert (told["run"], told["started"], told["ended"]) == (known.run, known.started, known.ended)
        assert known.run.startswith("retry") == (known.ended != first)
        return known.ended

    first: str | None = report(tmp_path)["ended"]
    assert ended() == first
    monkeypatch.setattr(ledger_module, "now", lambda: "2031-01-01T00:00:00.000+00:00")
    execute(tmp_path, retrying(plan), FakeRuntime(double))
    assert ended() == "2031-01-01T00:00:00.000+00:00" != first
    monkeypatch.setattr(ledger_module, "now", lambda: "2032-01-01T00:00:00.000+00:00")
    execute(tmp_path, retrying(plan), FakeRuntime(double))
    assert ended() == "2031-01-01T00:00:00.000+00:00"


@pytest.mark.slow
def test_a_merged_part_is_what_the_whole_would_have_been(tmp_path: Path) -> None:
    for name, first in (("a", refuse_negative), ("b", double)):
        (tmp_path / name).mkdir()
        save(tmp_path / name, [0, -1, 2, 3, 4, -5, 6, 7, 8])
        plan = written_as(plan_for(tmp_path / name, 9, max_failed=9), "jsonl")
        execute(tmp_path / name, plan, FakeRuntime(first))
        execute(tmp_path / name, retrying(plan), FakeRuntime(double))
    assert [path.read_bytes() for path in sorted((tmp_path / "a/out").glob("part*"))] == [
        path.read_bytes() for path in sorted((tmp_path / "b/out").glob("part*"))
    ]


def test_rows_that_fail_again_stay_with_their_attempts(tmp_path: Path) -> None:
    save(tmp_path, [0, -1, 2, -3])
    plan = plan_for(tmp_path, 4, max_failed=9)
    execute(tmp_path, plan, FakeRuntime(refuse_negative))

    def only_one(feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        return double(feeds) if (feeds["x"] == -3).all() else refuse_negative(feeds)

    result = execute(tmp_path, retrying(plan), FakeRuntime(only_one))
    assert (result.status, result.committed, result.failed) == (Status.DONE, 3, 1)
    assert [(row["row"], row["attempts"]) for row in failed(tmp_path)] == [(1, 2)]
    assert [row for row, _ in rows(tmp_path)] == [0, 2, 3]


@pytest.mark.slow
def test_a_retry_whose_process_crashed_counts_each_row_once(tmp_path: Path) -> None:
    """Rows of a part that it was through with do not run again in its next process."""
    save(tmp_path, [0, -1, 2, 3, 4, 5, 6, 7, 8, -9, 10])
    plan = plan_for(tmp_path, 11, max_failed=9)
    execute(tmp_path, plan, FakeRuntime(refuse_negative))

    def crash(feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        if (feeds["x"] == -9).any():
            raise Killed
        return refuse_negative(feeds)

    for run_id, attempts in (("first", 2), ("second", 3)):
        with pytest.raises(Killed):
            execute(tmp_path, retrying(plan), FakeRuntime(crash), run_id=run_id)
        seen, fatal = Counter(), [frozenset({9})]
        result = execute(tmp_path, retrying(plan), FakeRuntime(crash), observer=seen, stuck=fatal, run_id=run_id)
        assert (result.status, result.committed, result.failed) == (Status.DONE, 9, 2)
        assert [(row["row"], row["attempts"]) for row in failed(tmp_path)] == [(1, attempts), (9, attempts)]
        assert seen.started == [("run", 0, 1)]
    again = execute(tmp_path, retrying(plan), FakeRuntime(crash), run_id="second")
    assert (again.status, again.failed) == (Status.DONE, 2)
    assert [row["attempts"] for row in failed(tmp_path)] == [3, 3]


def test_a_retry_goes_on_with_the_next_session_and_counts_each_row_once(tmp_path: Path) -> None:
    save(tmp_path, [0, -1, 2, 3, 4, 5, 6, 7, 8, -9, 10])
    plan = changed(plan_with_sessions(tmp_path, 11), errors={"max_failed": 9})
    execute(tmp_path, plan, FakeRuntime(refuse_negative))

    def lost(feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        if (feeds["x"] == -9).any() and len(runtime.opened) == 1:
            raise ProviderFailedError("the device is gone")
        return refuse_negative(feeds)

    runtime = FakeRuntime(lost)
    assert execute(tmp_path, retrying(plan), runtime).status is Status.DONE
    assert runtime.opened == ["npu", "gpu"]
    assert [(row["row"], row["attempts"]) for row in failed(tmp_path)] == [(1, 2), (9, 2)]


def test_parts_with_later_files_get_others_although_none_is_carried_away_any_more(tmp_path: Path) -> None:
    """The own file of such a part may hold old rows, without their numbers."""
    save(tmp_path, [0, -1, -2, 3, *[-4, -5] * 4])
    plan = plan_for(tmp_path, 12, max_failed=99)
    removable = changed(plan, output={"removable": True})
    execute(tmp_path, removable, FakeRuntime(refuse_negative))

    def all_but_two(feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        return refuse_negative({"x": np.where(np.isin(feeds["x"], (-2, -4)), feeds["x"], abs(feeds["x"]))})

    execute(tmp_path, retrying(removable), FakeRuntime(all_but_two))
    assert execute(tmp_path, retrying(plan), FakeRuntime(double)).failed == 0
    held = {path.name: [json.loads(line)["row"] for line in path.read_text().splitlines()] for path in found(tmp_path)}
    assert held == {
        "part-00000000.jsonl": [0, 3],
        "part-00000000.r1.jsonl": [1, 5, 7],
        "part-00000000.r2.jsonl": [2, 4, 6],
        "part-00000001.r1.jsonl": [9, 11],
        "part-00000001.r2.jsonl": [8, 10],
    }


def found(folder: Path) -> list[Path]:
    return sorted((folder / "out").glob("part-*"))


def test_skipped_rows_keep_their_places_free(tmp_path: Path) -> None:
    save(tmp_path, [0, float("nan"), -2, 3])
    plan = plan_for(tmp_path, 4, max_failed=9, on_nan="skip")
    first = execute(tmp_path, plan, FakeRuntime(refuse_negative))
    assert (first.committed, first.failed, first.skipped) == (2, 1, 1)
    second = execute(tmp_path, retrying(plan), FakeRuntime(double))
    assert (second.committed, second.failed, second.skipped) == (3, 0, 1)
    assert [row for row, _ in rows(tmp_path)] == [0, 2, 3]


def test_nothing_to_retry_without_a_result_or_of_another_plan(tmp_path: Path) -> None:
    save(tmp_path, [0, -1])
    plan = plan_for(tmp_path, 2, max_failed=9)
    result = execute(tmp_path, retrying(plan), FakeRuntime(double))
    assert result.status is Status.FAILED
    assert "apply it first" in (result.reason or "")
    execute(tmp_path, plan, FakeRuntime(refuse_negative))
    other = execute(tmp_path, retrying(plan_for(tmp_path, 2, max_failed=9, size=2)), FakeRuntime(double))
    assert "apply it first" in (other.reason or "")
    save(tmp_path, [])
    shorter = execute(tmp_path, retrying(plan), FakeRuntime(double))
    assert (shorter.status, shorter.failed) == (Status.DONE, 1)
    (tmp_path / "data.npy").unlink()
    gone = execute(tmp_path, retrying(plan), FakeRuntime(double))
    assert (gone.status, gone.failed) == (Status.DONE, 1)
    assert [row for row, _ in rows(tmp_path)] == [0]
    save(tmp_path, [5, 6, 7])
    assert execute(tmp_path, retrying(plan), FakeRuntime(double)).failed == 0
    assert rows(tmp_path) == [(0, 0.0), (1, 12.0)]


def interrupt(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Let the next merge end at a step of its protocol."""

    def die(*_: object, **__: object) -> None:
        raise Killed

    if where == "before the ledger":
        monkeypatch.setattr(Ledger, "begin_rewrite", die)
    elif where == "before the rename":
        monkeypatch.setattr(recovery, "finish", die)
    else:
        monkeypatch.setattr(Ledger, "end_rewrite", die)


@pytest.mark.quick("retry-before the ledger", "apply-before the rename", "retry-before the end")
@pytest.mark.parametrize("where", ["before the ledger", "before the rename", "before the end"])
@pytest.mark.parametrize("next_run", ["retry", "apply"])
def test_a_merge_is_completed_whenever_it_was_interrupted(
    tmp_path: Path, where: str, next_run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, [0, -1, 2, 3, *[-4] * 8, 12, 13])
    plan = plan_for(tmp_path, 14, max_failed=20)
    execute(tmp_path, plan, FakeRuntime(refuse_negative))
    with monkeypatch.context() as patched:
        interrupt(patched, where)
        with pytest.raises(Killed):
            execute(tmp_path, retrying(plan), FakeRuntime(double))
    if next_run == "apply":
        execute(tmp_path, plan, FakeRuntime(double))
    assert execute(tmp_path, retrying(plan), FakeRuntime(double)).committed == 14
    assert [row for row, _ in rows(tmp_path)] == list(range(14))
    assert [path.name for path in (tmp_path / "out").glob(".*")] == []
    (record,) = read_outputs(tmp_path / ".ortdeploy")
    assert sum(part.committed for part in record.parts) == 14
    assert all((tmp_path / "out" / (part.file or "")).stat().st_size == part.bytes for part in record.parts)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=effort(5, 60), deadline=None)
@given(
    bad=st.lists(st.booleans(), min_size=1, max_size=60),
    still_bad=st.sets(st.integers(0, 59), max_size=8),
    size=st.integers(1, 7),
    rows_per_part=st.integers(1, 20),
    kind=st.sampled_from(sorted(READ)),
)
def test_the_invariant_holds_over_any_retries(
    tmp_path_factory: pytest.TempPathFactory,
    bad: Sequence[bool],
    still_bad: set[int],
    size: int,
    rows_per_part: int,
    kind: str,
) -> None:
    folder = tmp_path_factory.mktemp("retry")
    save(folder, [-1.0 - row if wrong else float(row) for row, wrong in enumerate(bad)])
    plan = written_as(plan_for(folder, len(bad), max_failed=99, size=size, rows_per_part=rows_per_part), kind)
    execute(folder, plan, FakeRuntime(refuse_negative))

    def refuse_some(feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        return refuse_negative({"x": np.where(np.isin(-1 - feeds["x"], list(still_bad)), feeds["x"], 1)})

    execute(folder, retrying(plan), FakeRuntime(refuse_some))
    left = [row for row, wrong in enumerate(bad) if wrong and row in still_bad]
    assert [entry["row"] for entry in failed(folder)] == left
    assert parts(folder, kind) == [row for row in range(len(bad)) if row not in left]
