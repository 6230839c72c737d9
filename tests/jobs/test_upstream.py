"""Jobs that read other jobs' rows: each committed row is read once, whatever happens to the job that commits it."""

import copy
import itertools
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.effort import effort
from support.jobs import Killed
from support.upstream_jobs import COMPACTED, JOBS, TREE, Site, killing, number_of

from ortdeploy.ledger.opening import read_ledger
from ortdeploy.ledger.published_files import deliveries, reader_of
from ortdeploy.plan.selection import job_names, keep_jobs, run_jobs
from ortdeploy.plan.steps import RunJob, Step
from ortdeploy.results.results import Status


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "site")


def check(site: Site) -> None:
    """No row is committed twice, none is another one than that from which it was made, and none comes from nowhere."""
    numbers = {job: site.numbers(job) for job in JOBS}
    for job, found in numbers.items():
        assert len(found) == len(set(found)), f"{job} has rows twice"
    for reader, job in (("b", "a"), ("d", "b")):
        if not site.has_started_over(job, reader):
            lines = {(int(row["row"]), number_of(row)) for row in site.lines(job)}
            assert lines.issuperset((int(row[f"row_of_{job}"]), number_of(row)) for row in site.rows(reader))
    assert set(numbers["c"]) <= set(map(number_of, site.lines("a"))) or site.has_started_over("a", "c")


@pytest.mark.slow
def test_a_tree_of_jobs_runs_in_the_order_of_its_rows(site: Site) -> None:
    site.put(3)
    site.put(7)
    assert [step.job for step in run_jobs(site.plan().plans[0])] == ["a", "c", "b", "d"]
    results = site.apply()
    assert {result.status for result in results.values()} == {Status.DONE}
    check(site)
    assert all(site.numbers(job) == list(range(10)) for job in JOBS)
    assert [row["path"] for row in site.rows("d")] == ["inbox/0000.npy"] * 3 + ["inbox/0003.npy"] * 7
    assert {result.status for result in site.apply().values()} == {Status.NOTHING_TO_DO}
    site.put(2)
    site.apply()
    assert site.ran == {job: list(range(12)) for job in JOBS}
    check(site)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 6)),
        st.tuples(st.just("change"), st.integers(0, 5), st.none() | st.integers(0, 6)),
        st.tuples(st.just("refuse"), st.sampled_from(JOBS), st.integers(0, 12)),
        st.tuples(st.just("mend"), st.sampled_from(JOBS)),
        st.tuples(st.just("apply"), st.none() | st.integers(0, 40)),
        st.tuples(st.just("retry"), st.sampled_from(JOBS), st.none() | st.integers(0, 12)),
        st.tuples(st.just("upgrade_to"), st.sampled_from(JOBS)),
        st.tuples(st.just("carry")),
        st.tuples(st.just("keep"), st.none() | st.integers(0, 40)),
        st.tuples(st.just("new_run"), st.none() | st.integers(0, 12)),
        st.tuples(st.just("compact"), st.sampled_from(sorted(COMPACTED)), st.none() | st.integers(0, 6)),
    ),
    min_size=3,
    max_size=12,
)


@dataclass
class World:
    """A site to which things happen."""

    site: Site
    upgrade: str
    carried: int = 0

    def happen(self, event: tuple[Any, ...]) -> None:
        getattr(self, event[0])(*event[1:])

    def put(self, rows: int) -> None:
        self.site.put(rows)

    def change(self, which: int, rows: int | None) -> None:
        self.site.change(which, rows)

    def refuse(self, job: str, number: int) -> None:
        self.site.refused.add((job, number))

    def mend(self, job: str) -> None:
        self.site.refused = {one for one in self.site.refused if one[0] != job}

    def apply(self, kill_at: int | None) -> None:
        self.bring_back()
        self.site.apply(kill_at=kill_at)

    def bring_back(self) -> None:
        """Bring back what was carried away if the plan says that d must know which rows it had."""
        found = self.site.plan().diagnostics if self.carried else ()
        if any("Restore it" in one.detail for one in found):
            self.site.bring_back()

    def retry(self, job: str, kill_at: int | None) -> None:
        self.bring_back()
        if self.site.record(job) is not None:
            self.site.bring_back()  # a failed row is read again
            self.site.apply(kill_at=kill_at, jobs=[job], retry=True)

    def upgrade_to(self, job: str) -> None:
        self.site.upgrade(job)

    def carry(self) -> None:
        """Carry away what nobody needs, unless d may begin anew, and need it."""
        self.carried += self.site.carry() if self.upgrade == "continue" else 0

    def keep(self, kill_at: int | None) -> None:
        """Apply with `keep`, while all input files that are done are taken away, and all parts of a are carried away."""
        if self.upgrade != "continue":
            return
        self.site.keep("a", "b")
        self.site.take_away()
        self.bring_back()
        planned = self.site.plan()
        self.carried += self.site.carry_all("a")
        with suppress(Killed), killing(kill_at):
            self.site.run(planned.plans[0])

    def compact(self, job: str, kill_at: int | None) -> None:
        self.site.compact(job, kill_at=kill_at)

    def new_run(self, kill_at: int | None) -> None:
        if not self.carried:
            self.site.apply(kill_at=kill_at, new_run=True)


@settings(max_examples=effort(1, 80), deadline=None, suppress_health_check=list(HealthCheck))
@given(events=EVENTS, upgrade=st.sampled_from(["continue", "rerun"]))
def test_each_row_is_read_once_whatever_happens(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[Any, ...]], upgrade: str
) -> None:
    let_happen(tmp_path_factory.mktemp("fed"), events, upgrade)


@pytest.mark.slow
@pytest.mark.parametrize(
    "events",
    [
        [("put", 1), ("put", 2), ("apply", 27), ("new_run", 0)],
        [("apply", None), ("put", 3), ("keep", None), ("put", 1), ("keep", None)],
        [
            ("apply", None), ("put", 6), *[("change", 0, None)] * 3, ("mend", "a"), *[("change", 0, None)] * 3,
            ("mend", "a"), ("keep", 0), ("change", 4, 6),
        ],
    ],
)  # fmt: skip
def test_each_row_is_read_once_in_what_was_hard(tmp_path: Path, events: list[tuple[Any, ...]]) -> None:
    let_happen(tmp_path, events, "continue")


def let_happen(folder: Path, events: list[tuple[Any, ...]], upgrade: str) -> None:
    site = Site(folder / "site", TREE.replace("UPGRADE", upgrade))
    world = World(site, upgrade)
    for event in [("put", 2), *events]:
        world.happen(event)
        check(site)
    site.refused = set()
    world.apply(None)
    for job in filter(site.failed, JOBS):
        world.retry(job, None)
        world.apply(None)
        check(site)
    world.apply(None)
    assert {job: sorted(site.numbers(job)) for job in JOBS} == dict.fromkeys(JOBS, site.numbers_now)
    assert {result.status for result in site.apply().values()} == {Status.NOTHING_TO_DO}
    assert not any(site.failed(job) for job in JOBS)


@pytest.mark.slow
def test_what_a_job_that_failed_has_committed_waits(site: Site) -> None:
    (site.folder / "m.yaml").write_text(site.manifest.replace("max_failed: 100%", "max_failed: 1"))
    site.put(9)
    site.refused = {("a", 5), ("a", 6)}
    results = site.apply()
    assert [results[job].status for job in "abcd"] == [Status.FAILED, *[Status.NOTHING_TO_DO] * 3]
    assert site.numbers("a")
    assert results["b"].reason == (
        'it waits: job "a", whose rows it reads, ended as failed. What that has committed is read when it ends well'
    )
    assert site.apply(jobs=["b"])["b"].reason == results["b"].reason
    site.refused = {("a", 5)}
    site.apply()
    assert site.numbers("d") == [0, 1, 2, 3, 4, 6, 7, 8]


def test_a_recovered_row_runs_downstream_and_no_other_does(site: Site) -> None:
    site.put(9)
    site.refused = {("a", 5), ("b", 7)}
    site.apply()
    assert [site.numbers(job) for job in "ab"] == [[0, 1, 2, 3, 4, 6, 7, 8], [0, 1, 2, 3, 4, 6, 8]]
    site.refused = set()
    site.seen = {job: [] for job in JOBS}
    site.apply(jobs=["a", "b"], retry=True)
    assert site.ran == {"a": [5], "b": [7], "c": [], "d": []}
    assert site.files("a")[2].name == "part-00000001.r1.parquet"
    site.apply()
    assert site.ran == {"a": [5], "b": [5, 7], "c": [5], "d": [5, 7]}
    check(site)
    assert [sorted(site.numbers(job)) for job in JOBS] == [list(range(9))] * 4
    (row,) = (row for row in site.rows("d") if number_of(row) == 5)
    assert (row["path"], row["row_of_b"]) == ("inbox/0000.npy", "8")


@pytest.mark.slow
def test_a_job_that_starts_over_takes_its_readers_along(site: Site) -> None:
    site.put(4)
    site.apply()
    site.upgrade("a")
    (site.folder / "m.yaml").write_text(site.manifest.replace("continue", "refuse"))
    site.apply(new_run=True)
    assert {row["v"][0] for row in site.rows("a")} == {1}
    assert site.ran == {job: sorted([*range(4), *range(4)]) for job in JOBS}
    check(site)


@pytest.mark.slow
def test_readers_that_are_not_asked_for_start_over_when_they_run(site: Site) -> None:
    site.put(4)
    site.apply()
    site.upgrade("a")
    (site.folder / "m.yaml").write_text(site.manifest.replace("continue", "refuse"))
    site.apply(new_run=True, jobs=["a"])
    assert site.ran["b"] == list(range(4))
    (plan,) = site.plan().plans
    assert {step.job: step.output.replaces is not None for step in run_jobs(plan)} == dict.fromkeys("bcd", True)
    site.apply()
    assert site.ran == {job: sorted([*range(4), *range(4)]) for job in JOBS}
    check(site)


MISFIT = """\
  misfit:
    model: a
    input: {path: other.npy}
    output: {path: out/misfit, format: csv}
"""


def test_a_part_that_went_too_early_is_an_error_that_names_its_reader(site: Site) -> None:
    site.put(6)
    site.apply(jobs=["a", "b"])
    with read_ledger(site.state_dir) as ledger:
        assert all(reader_of(ledger, "../out/d", "d").needs(one) for one in deliveries(site.record("b"), "out/b"))
    (site.folder / "out/b/part-00000001.jsonl").unlink()
    site.put(2)
    planned = site.plan()
    (found,) = planned.diagnostics
    assert found.rule == "unreadable-input"
    assert found.detail.startswith('out/b/part-00000001.jsonl was carried away before job "d" had read it.')
    assert not site.plan(jobs=["d"]).plans
    results = site.run(planned.plans[0])
    assert {job: result.status for job, result in results.items()} == dict.fromkeys("abc", Status.DONE)
    assert site.record("d") is None


@pytest.mark.slow
def test_what_is_wrong_with_a_job_that_is_not_asked_for_refuses_no_other(site: Site) -> None:
    site.put(6)
    site.apply()
    np.save(site.folder / "other.npy", np.zeros((3, 7), np.float32))
    text = (site.folder / "m.yaml").read_text()
    (site.folder / "m.yaml").write_text(text + MISFIT)
    site.put(2)
    assert not site.plan().plans
    planned = site.plan(jobs=["a", "b"])
    assert planned.diagnostics == ()
    assert set(job_names(planned.plans[0])) == {"a", "b"}


def test_a_part_that_goes_between_plan_and_run_is_an_error_too(site: Site) -> None:
    site.put(6)
    site.apply(jobs=["a", "b"])
    (plan,) = site.plan().plans
    (site.folder / "out/b/part-00000001.jsonl").unlink()
    result = site.run(plan)["d"]
    assert result.status is Status.FAILED
    assert "carried away before" in str(result.reason)
    assert site.record("d") is None


def test_files_that_every_reader_has_may_go(site: Site) -> None:
    site.put(6)
    site.refused = {("d", 5)}
    site.apply()
    assert site.carry() == 1, "the second has a row that failed in d"
    site.refused = set()
    site.apply(jobs=["d"], retry=True)
    assert site.carry() == 1
    site.put(3)
    site.apply()
    assert sorted(site.numbers("d")) == list(range(9))


@pytest.mark.slow
def test_a_part_that_a_reader_needs_is_not_forgotten(site: Site) -> None:
    site.keep("a", "b")
    site.put(4)
    site.apply(jobs=["a"])
    site.put(2)
    (site.folder / "inbox/0000.npy").unlink()
    (plan,) = site.plan().plans
    part = site.folder / "out/a/part-00000000.parquet"
    away = part.rename(site.folder / "part")
    results = site.run(plan)
    assert results["a"].status is Status.DONE
    assert "carried away before" in str(results["b"].reason)
    assert site.record("a").forgotten.parts == 0  # type: ignore[union-attr]
    away.rename(part)
    site.apply()
    assert site.ran == {job: list(range(6)) for job in JOBS}


def test_what_all_readers_have_is_forgotten_and_then_by_the_readers(site: Site) -> None:
    site.keep("a", "b")
    for _ in range(4):
        for path in site.folder.glob("inbox/*.npy"):
            path.unlink()
        site.put(3)
        site.apply()
        site.carry_all("a")
        site.carry_all("b")
    assert [site.record(job).forgotten.parts for job in "ab"] == [3, 3]  # type: ignore[union-attr]
    assert site.ran == {job: list(range(12)) for job in JOBS}
    assert {result.status for result in site.apply().values()} == {Status.NOTHING_TO_DO}


def test_a_copy_of_a_part_is_read_and_another_content_is_not(site: Site) -> None:
    site.put(6)
    site.apply(jobs=["a"])
    place = site.folder / "out/a/part-00000000.parquet"
    content = place.read_bytes()
    place.unlink()
    place.write_bytes(content)
    assert site.apply(jobs=["c"])["c"].status is Status.DONE
    (plan,) = site.plan(jobs=["b"]).plans
    place.write_bytes(content[:-1] + b"x")
    result = site.run(plan)["b"]
    assert "holds other bytes than were written" in str(result.reason)


def test_a_job_alone_says_what_it_needs_first(site: Site) -> None:
    site.put(1)
    (plan,) = site.plan(jobs=["d"]).plans
    assert plan.finished[0].waiting == (
        'it reads the rows of job "b", and there are none that it has not read. Apply --job a --job b first'
    )
    assert site.apply(jobs=["d"])["d"].status is Status.NOTHING_TO_DO


def test_a_file_that_was_not_read_because_its_job_ran_meanwhile_is_asked_for_again(site: Site) -> None:
    site.put(2)
    site.apply()
    site.upgrade("a")
    site.put(1)
    (site.folder / "m.yaml").write_text(site.manifest.replace("continue", "refuse", 3).replace("continue", "rerun"))
    (plan,) = site.plan().plans
    readers = keep_jobs(plan, ["b", "c", "d"])
    fresh = replace(readers, steps=tuple(_as_before(step) for step in readers.steps))
    site.run(keep_jobs(plan, ["a"]))
    assert "has started over since the plan was made" in str(site.run(fresh)["b"].reason)


def _as_before(step: Step) -> Step:
    """A step of a plan that was made before the job that it reads was to start over."""
    return replace(step, output=replace(step.output, replaces=None)) if isinstance(step, RunJob) else step


def states(site: Site, job: str) -> dict[str, tuple[int, int, bytes]]:
    """Inode, time and content of each file."""
    found = sorted((site.folder / "out" / job).glob("part-*"))
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes()) for path in found}


@pytest.mark.slow
def test_rows_that_run_again_run_downstream_and_no_other_does(site: Site) -> None:
    for rows in (4, 4, 4):
        site.put(rows)
        site.apply()
    before = {job: states(site, job) for job in JOBS}
    site.seen = {job: [] for job in JOBS}
    site.change(1)
    site.apply()
    assert site.ran == {key: [12, 13, 14, 15] for key in JOBS}
    assert {job: sorted(site.numbers(job)) for job in JOBS} == dict.fromkeys(JOBS, site.numbers_now)
    check(site)
    after = {job: states(site, job) for job in JOBS}
    changed = {job: [name for name in before[job] if after[job].get(name) != before[job][name]] for job in JOBS}
    assert changed == {"a": [], "b": [], "c": ["part-00000001.npz"], "d": ["part-00000001.csv"]}
    new = {job: sorted({*after[job]} - {*before[job]}) for job in JOBS}
    assert new == {
        "a": ["part-00000001.r1.parquet"], "b": ["part-00000003.jsonl"], "c": ["part-00000003.npz"],
        "d": ["part-00000003.csv"],
    }  # fmt: skip
    assert {result.status for result in site.apply().values()} == {Status.NOTHING_TO_DO}


@pytest.mark.slow
def test_rows_that_are_withdrawn_leave_downstream_without_new_ones(site: Site) -> None:
    site.put(3)
    site.put(2)
    site.apply()
    site.change(0, 0)
    site.apply(jobs=["a"])
    assert site.numbers("a") == [3, 4]
    assert [step.job for step in run_jobs(site.plan(jobs=["b"]).plans[0])] == ["b"]
    site.seen = {job: [] for job in JOBS}
    site.apply()
    assert site.ran == {key: [] for key in JOBS}
    assert {job: site.numbers(job) for job in JOBS} == {key: [3, 4] for key in JOBS}
    assert {result.status for result in site.apply().values()} == {Status.NOTHING_TO_DO}


@pytest.mark.slow
def test_a_row_that_fails_when_it_runs_again_leaves_downstream_until_it_is_recovered(site: Site) -> None:
    site.put(3)
    site.refused = {("a", 1), ("a", 5)}
    site.apply()
    site.change(0)
    site.apply()
    assert {job: sorted(site.numbers(job)) for job in JOBS} == {key: [3, 4] for key in JOBS}
    site.refused = set()
    site.apply(jobs=["a"], retry=True)
    site.apply()
    assert {job: sorted(site.numbers(job)) for job in JOBS} == {key: [3, 4, 5] for key in JOBS}


@pytest.mark.slow
def test_dead_letters_of_rows_that_run_again_are_gone(site: Site) -> None:
    site.put(3)
    site.refused = {("b", 1)}
    site.apply()
    site.change(0)
    site.apply()
    assert site.failed("b") == []
    assert sorted(site.numbers("d")) == [3, 4, 5]


@pytest.mark.quick("3")
@pytest.mark.parametrize("rows", [0, 3])
def test_a_part_that_was_carried_away_is_asked_for_where_nothing_else_tells_its_rows(site: Site, rows: int) -> None:
    site.put(3)
    site.put(2)
    site.refused = {("b", 1)}
    site.apply()
    site.carry()
    site.change(0, rows)
    planned = site.apply(jobs=["a", "b"])
    assert {result.status for result in planned.values()} == {Status.DONE}
    if rows == 0:
        (found,) = site.plan(jobs=["d"]).diagnostics
        assert (found.rule, "out/b/part-00000000.jsonl have run again" in found.detail) == ("unreadable-input", True)
    else:
        failed = site.apply(jobs=["d"])["d"]
        assert failed.status is Status.FAILED
        assert "out/b/part-00000000.jsonl have run again or were withdrawn" in str(failed.reason)
    site.bring_back()
    site.apply()
    assert sorted(site.numbers("d")) == site.numbers_now


@pytest.mark.quick(0)
@pytest.mark.parametrize(
    ("step", "changes"),
    [
        (23, [(0, None), (1, 5)]),
        *((effort(4, 1), changes) for changes in ([(0, None), (1, 5)], [(1, None)], [(1, 0)])),
    ],
)
def test_killed_at_every_step_rows_that_run_again_are_there_once(
    tmp_path: Path, step: int, changes: list[tuple[int, int | None]]
) -> None:
    first = Site(tmp_path / "first")
    first.put(3)
    first.put(6)
    first.apply()
    for change in changes:
        first.change(*change)
    for kill_at in itertools.count(step // 2, step):
        folder = tmp_path / f"{kill_at}"
        shutil.copytree(first.folder, folder)
        site = copy.deepcopy(first)
        site.folder = folder
        results = site.apply(kill_at=kill_at)
        check(site)
        site.apply()
        check(site)
        assert {job: sorted(site.numbers(job)) for job in JOBS} == dict.fromkeys(JOBS, site.numbers_now), kill_at
        assert {result.status for result in site.apply().values()} == {Status.NOTHING_TO_DO}, kill_at
        shutil.rmtree(folder)
        if results:
            break
    assert kill_at > 2 * step


def start_b_over(site: Site, kill_at: int | None) -> Path:
    """Let b start over with another model, and be killed when its folder has another name; return that folder."""
    site.put(6)
    site.apply(jobs=["a", "b"])
    site.upgrade("b")
    (site.folder / "m.yaml").write_text(site.manifest.replace("continue", "refuse"))
    site.apply(kill_at=kill_at, new_run=True, jobs=["a", "b"])
    (aside,) = (site.folder / "out").glob("b.*")
    return aside


REMOVABLE = TREE.replace("UPGRADE", "continue")
IN_PLACE = REMOVABLE.replace("removable: true, ", "").replace("[path, row_of_a]", "[path, row, row_of_a]")


@pytest.mark.quick("removable")
@pytest.mark.parametrize("manifest", [REMOVABLE, IN_PLACE], ids=["removable", "in place"])
def test_a_job_that_was_killed_as_its_old_output_was_put_aside_starts_over(tmp_path: Path, manifest: str) -> None:
    site = Site(tmp_path / "site", manifest)
    aside = start_b_over(site, 1)
    assert not (site.folder / "out/b").exists()
    with read_ledger(site.state_dir) as ledger:
        assert ledger is not None
        assert ledger.output(ledger.key(aside)) is None
    site.apply()
    assert sorted(site.numbers("d")) == list(range(6))
    assert {row["v"][0] for row in site.rows("b")} == {1}
    check(site)
    with read_ledger(site.state_dir) as ledger:
        assert ledger is not None
        old = ledger.output(ledger.key(aside))
    assert old is not None
    assert [part.rows for part in old.parts] == [4, 2]
    assert {result.status for result in site.apply().values()} == {Status.NOTHING_TO_DO}


@pytest.mark.slow
def test_a_folder_that_was_carried_away_is_not_taken_for_one_that_was_put_aside(site: Site) -> None:
    aside = start_b_over(site, None)
    site.apply()
    (site.folder / "out/b").rename(site.folder / "away")
    assert aside.is_dir()
    assert {result.status for result in site.apply().values()} == {Status.NOTHING_TO_DO}


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [None, ["a"]], ids=["all at once", "one after the other"])
def test_readers_of_a_job_that_starts_over_without_a_row_have_none_either(site: Site, jobs: list[str] | None) -> None:
    site.put(4)
    site.apply()
    (site.folder / "m.yaml").write_text(site.manifest.replace("continue", "refuse"))
    site.upgrade("a")
    site.refused = {("a", number) for number in range(4)}
    site.apply(new_run=True, jobs=jobs)
    assert site.numbers("a") == []
    site.apply()
    assert {job: site.numbers(job) for job in JOBS} == {key: [] for key in JOBS}
    assert {result.status for result in site.apply().values()} == {Status.NOTHING_TO_DO}
    assert sorted(path.name.partition(".")[0] for path in (site.folder / "out").glob("*.*")) == [*JOBS]
    site.refused = set()
    site.apply(jobs=["a"], retry=True)
    site.apply()
    assert {job: sorted(site.numbers(job)) for job in JOBS} == {key: [0, 1, 2, 3] for key in JOBS}


@pytest.mark.slow
def test_a_reader_whose_parts_are_put_together_after_it_was_planned_reads_every_row_once(site: Site) -> None:
    for rows in (3, 2, 4):
        site.put(rows)
        site.apply()
    site.put(2)
    (plan,) = site.plan().plans
    before = {job: len(site.files(job)) for job in COMPACTED}
    for job in COMPACTED:
        site.compact(job)
    assert all(len(site.files(job)) < before[job] for job in COMPACTED)
    assert {result.status for result in site.run(plan).values()} == {Status.DONE}
    check(site)
    assert site.ran == {job: list(range(11)) for job in JOBS}
    site.change(1)
    site.apply()
    check(site)
    assert {job: sorted(site.numbers(job)) for job in JOBS} == dict.fromkeys(JOBS, site.numbers_now)
