"""Memory that is held: near its limit a job runs smaller batches, beyond it it ends with everything committed."""

from pathlib import Path

import pytest
from support.fakes import FakeRuntime, double
from support.jobs import (
    changed,
    execute,
    plan_for,
    rows,
    save,
)
from support.logs import capture_logs

from ortdeploy.process import memory
from ortdeploy.process import memory_limit as memory_watch
from ortdeploy.results.results import Status

LIMIT = 1000


class Process:
    """A process that takes so much memory, and more with each row that it has run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, base: int, of_a_row: int) -> None:
        self.runtime = FakeRuntime(double)
        self.base, self.of_a_row = base, of_a_row
        monkeypatch.setattr(memory_watch, "held_memory", self.resident)
        monkeypatch.setattr(memory_watch, "allocated_memory", lambda: None)
        monkeypatch.setattr(memory_watch, "_SECONDS_BETWEEN_LOOKS", 0.0)

    def resident(self) -> int:
        runs = self.runtime.sessions[0].batches if self.runtime.sessions else []
        return self.base + self.of_a_row * sum(len(batch["x"]) for batch in runs)


def test_near_the_limit_batches_are_halved_and_every_row_comes_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are more blocks than are on their way at once, so the watch finds some that have not begun."""
    save(tmp_path, range(2000))
    process = Process(monkeypatch, base=910, of_a_row=0)
    plan = changed(plan_for(tmp_path, 2000, rows_per_part=50), limits={"memory": LIMIT})
    with capture_logs() as events:
        result = execute(tmp_path, plan, process.runtime)
    assert result.status is Status.DONE, result.reason
    assert rows(tmp_path) == [(row, row * 2.0) for row in range(2000)]
    assert [event["rows"] for event in events if event["event"] == "batch.halved"] == [2]
    assert {len(batch["x"]) for batch in process.runtime.sessions[0].batches} >= {4, 2}
    assert {event["event"] for event in events} >= {"job.near_limit"}


@pytest.mark.process
def test_beyond_the_limit_the_job_ends_and_the_next_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight blocks of at most 20 rows may run before the first is written: fewer than those that reach the limit."""
    save(tmp_path, range(600))
    process = Process(monkeypatch, base=500, of_a_row=2)
    plan = changed(plan_for(tmp_path, 600, rows_per_part=20), limits={"memory": LIMIT})
    result = execute(tmp_path, plan, process.runtime)
    assert result.status is Status.FAILED
    assert result.reason is not None
    assert "Raise limits: {memory: …}" in result.reason
    done = rows(tmp_path)
    assert 0 < len(done) < 600
    monkeypatch.undo()
    assert execute(tmp_path, plan_for(tmp_path, 600, rows_per_part=20), FakeRuntime(double)).status is Status.DONE
    assert rows(tmp_path) == [(row, row * 2.0) for row in range(600)]


def test_without_a_limit_nothing_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, range(20))
    process = Process(monkeypatch, base=10**12, of_a_row=10)
    monkeypatch.setattr(memory_watch, "memory_of_the_group", lambda: None)
    assert execute(tmp_path, plan_for(tmp_path, 20), process.runtime).status is Status.DONE
    assert process.base == 10**12


def test_a_control_group_that_shrinks_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    Process(monkeypatch, base=800, of_a_row=0)
    group = [10_000]
    monkeypatch.setattr(memory_watch, "memory_of_the_group", lambda: group[0])
    watch = memory_watch.MemoryWatch(None, 1)
    assert not watch.is_near()
    group[0] = 850
    assert watch.is_near()
    assert not watch.is_near(), "it is said once, until memory grows"
    assert not watch.is_over
    group[0] = 700
    watch.is_near()
    assert watch.is_over


def test_a_trimmed_job_gives_memory_back_as_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, range(40))
    trims: list[int] = []
    monkeypatch.setattr(memory_watch, "trim_memory", lambda: trims.append(1))
    monkeypatch.setattr(memory_watch, "_SECONDS_BETWEEN_LOOKS", 0.0)
    monkeypatch.setattr(memory_watch, "_SECONDS_BETWEEN_TRIMS", 0.0)
    assert execute(tmp_path, changed(plan_for(tmp_path, 40), trim=True), FakeRuntime(double)).status is Status.DONE
    assert trims


def test_a_part_beyond_the_disk_limit_is_not_committed(tmp_path: Path) -> None:
    save(tmp_path, range(40))
    whole = plan_for(tmp_path, 40)
    result = execute(tmp_path, changed(whole, limits={"disk": 900}), FakeRuntime(double))
    assert result.status is Status.FAILED
    assert result.reason is not None
    assert "Raise limits: {disk: …}" in result.reason
    taken = sum(path.stat().st_size for path in (tmp_path / "out").glob("part-*"))
    assert 0 < taken <= 900
    assert len(rows(tmp_path)) == result.committed
    assert execute(tmp_path, whole, FakeRuntime(double)).status is Status.DONE
    assert rows(tmp_path) == [(row, row * 2.0) for row in range(40)]


def test_the_limits_of_control_groups_of_both_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below, above, old = tmp_path / "a/b", tmp_path / "a", tmp_path / "memory"
    below.mkdir(parents=True)
    old.mkdir()
    monkeypatch.setattr(memory, "group_folders", lambda _: (below, above, old, tmp_path / "gone"))
    assert memory.memory_of_the_group() is None
    (below / "memory.max").write_text("max\n")
    (above / "memory.max").write_text("5000000\n")
    assert memory.memory_of_the_group() == 5_000_000
    (old / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert memory.memory_of_the_group() == 5_000_000
    (old / "memory.limit_in_bytes").write_text("4000000\n")
    assert memory.memory_of_the_group() == 4_000_000


def test_no_more_can_be_allocated_than_the_limit_has_room_for() -> None:
    if memory.allocated_memory() is None:
        pytest.skip("this system does not bound private memory")
    size = 256 * 1024 * 1024
    with memory_watch.MemoryBound((memory.resident_memory() or 0) + 32 * 1024 * 1024, 1):
        with pytest.raises(MemoryError):
            bytearray(size)
        assert len(bytearray(1024 * 1024)) == 1024 * 1024
    assert len(bytearray(size)) == size
