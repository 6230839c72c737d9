"""Parts that are carried away: at any moment, after any kill, every row arrives once, under a name that no other part had."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.carriers import CARRIERS, Carrier, delivered, rows_of, times_delivered
from support.fakes import FakeRuntime, double, refuse_negative
from support.jobs import changed, execute, failed, plan_for, report, retrying, save
from support.power_loss import EVERY, ROWS, Event, failures_after, make_plan, quickly, recording, run_all, stop_twice

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.ledger.opening import open_ledger, read_outputs
from ortdeploy.parts.committed import taken_bytes
from ortdeploy.plan.steps import Plan
from ortdeploy.results.results import Status

BAD = [row for row in range(ROWS) if row % 7 == 3]


def removable(folder: Path, rows: int, **settings: object) -> Plan:
    return changed(plan_for(folder, rows, **settings), output={"removable": True})


@pytest.mark.parametrize("carrier", CARRIERS.values(), ids=CARRIERS)
def test_what_is_carried_away_stays_committed(tmp_path: Path, carrier: Carrier) -> None:
    save(tmp_path, [0, -1, 2, 3, 4, 5, 6, 7, -8, 9])
    plan = removable(tmp_path, 10, max_failed=9)
    assert execute(tmp_path, plan, FakeRuntime(refuse_negative)).committed == 8
    carrier(tmp_path / "out", tmp_path / "away/1")
    assert execute(tmp_path, plan, FakeRuntime(double)).status is Status.NOTHING_TO_DO
    result = execute(tmp_path, retrying(plan), FakeRuntime(double))
    assert (result.status, result.committed, result.failed) == (Status.DONE, 10, 0)
    files = delivered(tmp_path / "away", tmp_path / "out")
    assert sorted(files) == [f"part-0000000{name}.jsonl" for name in ("0", "0.r1", "1", "1.r1")]
    assert list(rows_of(files)) == list(range(10))
    assert set(times_delivered(files).values()) == {1}
    assert failed(tmp_path) == []
    parts = report(tmp_path)["parts"]
    assert [[(one["file"], one["rows"]) for one in part["revisions"]] for part in parts] == [
        [("part-00000000.r1.jsonl", [1])], [("part-00000001.r1.jsonl", [8])],
    ]  # fmt: skip
    carrier(tmp_path / "out", tmp_path / "away/2")
    assert execute(tmp_path, retrying(plan), FakeRuntime(double)).status is Status.NOTHING_TO_DO


def test_rows_that_fail_again_get_another_file_next_time(tmp_path: Path) -> None:
    save(tmp_path, [0, -1, -2, 3])
    plan = removable(tmp_path, 4, max_failed=9)
    execute(tmp_path, plan, FakeRuntime(refuse_negative))

    def refuse_second(feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        if (feeds["x"] == -2).any():
            raise OrtdeployError("again")
        return double(feeds)

    assert execute(tmp_path, retrying(plan), FakeRuntime(refuse_second)).failed == 1
    assert execute(tmp_path, retrying(plan), FakeRuntime(double)).failed == 0
    files = delivered(tmp_path / "out")
    assert [len(files[f"part-00000000{name}.jsonl"].splitlines()) for name in ("", ".r1", ".r2")] == [2, 1, 1]
    assert list(rows_of(files)) == [0, 1, 2, 3]


def test_a_part_that_is_there_and_differs_is_damage(tmp_path: Path) -> None:
    save(tmp_path, [0, -1, 2])
    plan = removable(tmp_path, 3, max_failed=9)
    execute(tmp_path, plan, FakeRuntime(refuse_negative))
    execute(tmp_path, retrying(plan), FakeRuntime(double))
    for name in ("part-00000000.jsonl", "part-00000000.r1.jsonl"):
        path = tmp_path / "out" / name
        content = path.read_bytes()
        path.write_bytes(content[:-2])
        result = execute(tmp_path, retrying(plan), FakeRuntime(double))
        assert result.status is Status.FAILED
        assert result.reason is not None
        assert f"{name} was committed and has" in result.reason
        path.write_bytes(content)


def test_a_part_that_is_carried_away_in_a_run_is_no_reason_to_stop(tmp_path: Path) -> None:
    save(tmp_path, range(24))
    away = tmp_path / "away"
    away.mkdir()

    def run(feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        for path in (tmp_path / "out").glob("part-*"):
            path.rename(away / path.name)
        return double(feeds)

    result = execute(tmp_path, removable(tmp_path, 24), FakeRuntime(run))
    assert (result.status, result.committed) == (Status.DONE, 24)
    assert list(rows_of(delivered(away, tmp_path / "out"))) == list(range(24))


def test_a_folder_that_is_carried_away_in_a_run_is_said_and_the_next_run_goes_on(tmp_path: Path) -> None:
    save(tmp_path, range(24))
    plan = removable(tmp_path, 24)

    def run(feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        if feeds["x"].max() > 20 and (tmp_path / "out").exists():
            (tmp_path / "out").rename(tmp_path / "away")
        return double(feeds)

    result = execute(tmp_path, plan, FakeRuntime(run))
    assert result.status is Status.FAILED
    assert result.reason is not None
    assert "out was carried away, or renamed, while the job ran" in result.reason
    assert execute(tmp_path, plan, FakeRuntime(double)).status is Status.DONE
    assert list(rows_of(delivered(tmp_path / "away", tmp_path / "out"))) == list(range(24))


def test_the_disk_that_a_job_may_use_is_that_of_parts_which_are_there(tmp_path: Path) -> None:
    save(tmp_path, range(24))
    plan = changed(removable(tmp_path, 24), limits={"disk": 500})
    result = execute(tmp_path, plan, FakeRuntime(double))
    assert result.reason is not None
    assert "the output would take" in result.reason
    kept = read_outputs(tmp_path / ".ortdeploy")[0]
    CARRIERS["parts"](tmp_path / "out", tmp_path / "away")
    assert execute(tmp_path, plan, FakeRuntime(double)).status is Status.DONE
    assert kept.rows < 24
    assert list(rows_of(delivered(tmp_path / "away", tmp_path / "out"))) == list(range(24))


def test_a_new_run_makes_room_where_the_folder_is_gone(tmp_path: Path) -> None:
    save(tmp_path, range(8))
    execute(tmp_path, removable(tmp_path, 8), FakeRuntime(double))
    shutil.rmtree(tmp_path / "out")
    plan = changed(removable(tmp_path, 8), output={"replaces": "r1", "aside": "out-aside"})
    assert execute(tmp_path, plan, FakeRuntime(double)).committed == 8
    with open_ledger(tmp_path / ".ortdeploy") as ledger:
        assert len(ledger.outputs()) == 2


def outcomes(
    recorded: Sequence[Event], folder: Path, carrier: Carrier, *, kills: bool, every: int = EVERY
) -> Iterator[tuple[str, str]]:
    """Yield what went wrong, from every state that power loss, or only a kill, may leave and with that carrier."""
    return failures_after(recorded, folder, lambda left: carry_and_go_on(left, carrier), kills=kills, every=every)


def carry_and_go_on(folder: Path, carrier: Carrier) -> None:
    """Carry away what is there, do the rest, and look at what has arrived."""
    out, away = folder / "work/out", folder / "away"
    carrier(out, away / "1")
    plan = make_plan(folder / "work", removable=True)
    with quickly():
        run_all(folder, plan)
    carrier(out, away / "2")
    with quickly():
        run_all(folder, plan)
    files = delivered(away, out)
    rows = rows_of(files)
    assert {number: row["y"][0] for number, row in rows.items()} == {
        row: 2.0 * (-1 - row if row in BAD else row) for row in range(ROWS)
    }
    if not away.exists():
        assert set(times_delivered(files).values()) == {1}
        assert not [path for path in out.iterdir() if path.name.startswith(".")]


@pytest.fixture(name="recorded", scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    folder = tmp_path_factory.mktemp("recorded")
    for place in ("work", "state"):
        (folder / place).mkdir()
    plan = make_plan(folder / "work", removable=True)
    with recording(folder) as events:
        stop_twice(folder, plan)
        run_all(folder, plan)
    names = [event.target for event in events if event.kind == "name"]
    assert "work/out/part-00000001.jsonl" in names
    assert "work/out/part-00000001.r1.jsonl" in names
    return list(events)


@pytest.mark.quick("parts-11")
@pytest.mark.process
@pytest.mark.parametrize(("name", "every"), [*((name, EVERY) for name in CARRIERS), ("parts", 11)])
def test_killed_at_every_step_every_row_arrives_once(
    recorded: list[Event], tmp_path: Path, name: str, every: int
) -> None:
    assert list(outcomes(recorded, tmp_path, CARRIERS[name], kills=True, every=every)) == []


@pytest.mark.slow
@pytest.mark.parametrize("carrier", CARRIERS.values(), ids=CARRIERS)
def test_after_power_loss_at_every_step_every_row_arrives_once(
    recorded: list[Event], tmp_path: Path, carrier: Carrier
) -> None:
    assert list(outcomes(recorded, tmp_path, carrier, kills=False)) == []


def test_the_parts_that_are_there_are_looked_at_once_while_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []

    def looked(*arguments: Any) -> int:
        looks.append(taken_bytes(*arguments))
        return looks[-1]

    monkeypatch.setattr("ortdeploy.parts.committed.taken_bytes", looked)
    save(tmp_path, range(24))
    plan = changed(removable(tmp_path, 24), limits={"disk": 10**6})
    assert execute(tmp_path, plan, FakeRuntime(double)).committed == 24
    assert looks == [0]
