"""What holds of parts that many processes make wherever they write them: in a folder, and on a store in memory."""

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.effort import effort
from support.fakes import FakeRuntime, double
from support.jobs import execute, plan_for, save
from support.shards import OUT, Killed, die_after, die_before, failing, finish, instead, litter_of, on_store, run_shard

from ortdeploy.files.object_store import Upload
from ortdeploy.ledger.opening import read_outputs
from ortdeploy.plan.steps import Plan
from ortdeploy.results.results import Status

ROWS = 30  # four parts, the last one short
VALUES = [float(row) for row in range(ROWS)]
DIE = pytest.mark.parametrize("die", [die_before, die_after])


class Place(NamedTuple):
    """The output of a deployment in a folder: as a file system of fsspec sees it, in a folder or on a store."""

    folder: Path
    system: Any
    root: str

    def plan(self) -> Plan:
        save(self.folder, VALUES)
        plan = plan_for(self.folder, ROWS)
        return plan if self.root.startswith(str(self.folder)) else on_store(plan, OUT)

    def names(self) -> list[str]:
        return sorted(str(one).removeprefix(f"{self.root}/") for one in self.system.find(self.root))

    def read(self, name: str) -> bytes:
        content: bytes = self.system.cat_file(f"{self.root}/{name}")
        return content

    def parts(self) -> dict[str, bytes]:
        return {name: self.read(name) for name in self.names() if name.startswith("part-")}

    def litter(self) -> list[str]:
        return [*litter_of(self.names()), *(one for one in self.names() if "/." in f"/{one}")]

    def states(self) -> dict[str, Any]:
        """What differs of each part if it is written again."""
        found = {name: self.system.info(f"{self.root}/{name}") for name in self.parts()}
        return {name: info.get("ino", info["created"]) for name, info in found.items()}

    def put_aside(self) -> None:
        if self.root.startswith(str(self.folder)):
            (self.folder / "out").rename(self.folder / "out.old")
            (self.folder / "out").mkdir()
        else:
            Upload(OUT, self.folder).put_aside("out.old")


@pytest.fixture(params=["folder", "store"])
def place(tmp_path: Path, store: Any, request: pytest.FixtureRequest) -> Place:
    if request.param == "store":
        return Place(tmp_path, store, "/bucket/out")
    return Place(tmp_path, fsspec.filesystem("file"), str(tmp_path / "out"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The parts that one machine makes."""
    folder = tmp_path_factory.mktemp("alone")
    place = Place(folder, fsspec.filesystem("file"), str(folder / "out"))
    assert execute(folder, place.plan(), FakeRuntime(double)).status is Status.DONE
    return place.parts()


@pytest.mark.quick("folder-2", "folder-7", "store-1", "store-3")
@pytest.mark.parametrize("order", [(0,), (1, 0), (2, 0, 1), (6, 3, 0, 5, 1, 4, 2)], ids=len)
def test_shards_in_any_order_make_the_parts_of_one_machine(
    place: Place, alone: dict[str, bytes], order: tuple[int, ...]
) -> None:
    plan = place.plan()
    for index in order:
        assert run_shard(place.folder, plan, index, len(order)).status in {Status.DONE, Status.NOTHING_TO_DO}
    assert place.parts() == alone
    assert finish(place.folder, plan).status is Status.DONE
    assert (place.parts(), place.litter()) == (alone, [])
    report = json.loads(place.read("_run.json"))
    assert report["rows"] == {"input": ROWS, "committed": ROWS, "failed": 0, "skipped": 0}
    assert sum(one["rows"] for one in report["workers"]) == ROWS
    assert finish(place.folder, plan).committed == ROWS
    assert run_shard(place.folder, plan, 0, 1).status is Status.NOTHING_TO_DO


@pytest.mark.quick(*(f"{one}-{case}" for one in ("folder", "store") for case in (
    "die_before-stage", "die_after-stage", "die_before-publish", "die_after-decide",
)))  # fmt: skip
@pytest.mark.parametrize("method", ["begin", "staging", "stage", "decide", "publish"])
@DIE
def test_a_shard_that_is_killed_is_run_again(
    place: Place, alone: dict[str, bytes], method: str, die: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = place.plan()
    with instead(monkeypatch, method, die), pytest.raises(Killed):
        run_shard(place.folder, plan, 0, 2)
    for index in range(3):
        run_shard(place.folder, plan, index, 3)
    assert finish(place.folder, plan).status is Status.DONE
    assert (place.parts(), place.litter()) == (alone, [])


@pytest.mark.parametrize("method", ["close", "tidy"])
@DIE
def test_a_finish_that_is_killed_is_run_again(
    place: Place, alone: dict[str, bytes], method: str, die: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = place.plan()
    run_shard(place.folder, plan, 0, 1)
    with instead(monkeypatch, method, die), pytest.raises(Killed):
        finish(place.folder, plan)
    assert finish(place.folder, plan).status is Status.DONE
    (record,) = read_outputs(place.folder / ".ortdeploy")
    assert (place.parts(), record.rows, record.status) == (alone, ROWS, "done")


def test_a_lost_ledger_is_made_again_from_the_decisions(place: Place) -> None:
    plan = place.plan()
    run_shard(place.folder, plan, 0, 1)
    finish(place.folder, plan)
    (before,) = read_outputs(place.folder / ".ortdeploy")
    (place.folder / ".ortdeploy/state.db").unlink()
    assert finish(place.folder, plan).status is Status.DONE
    (after,) = read_outputs(place.folder / ".ortdeploy")
    assert after.parts == before.parts


def wrong(feeds: Any) -> Any:
    return {"y": double(feeds)["y"] + 1}


@pytest.mark.parametrize("finished", [False, True], ids=["decided", "closed"])
@pytest.mark.parametrize("method", ["decide", "publish"])
def test_a_shard_that_slept_changes_nothing(
    place: Place, alone: dict[str, bytes], method: str, monkeypatch: pytest.MonkeyPatch, *, finished: bool
) -> None:
    """It would write other bytes, as another processor may; if it decides last, they are never seen."""
    plan = place.plan()
    states: dict[str, Any] = {}

    def sleep(original: Any, *arguments: Any) -> Any:
        for index in range(2):
            run_shard(place.folder, plan, index, 2)
        if finished:
            assert finish(place.folder, plan).status is Status.DONE
        states.update(place.states())
        return original(*arguments)

    with instead(monkeypatch, method, sleep):
        late = run_shard(place.folder, plan, 0, 4, wrong if method == "decide" else double)
    assert late.status in {Status.DONE, Status.NOTHING_TO_DO}
    assert finish(place.folder, plan).status is Status.DONE
    assert place.states() == states
    assert (place.parts(), place.litter()) == (alone, [])


@pytest.mark.parametrize("method", ["staging", "stage", "decide", "publish"])
def test_a_shard_that_slept_through_a_new_run_fails_and_adds_nothing_to_it(
    place: Place, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = place.plan()

    def sleep(original: Any, *arguments: Any) -> Any:
        place.put_aside()
        assert not place.names()
        place.system.pipe_file(f"{place.root}/part-00000000.jsonl", b"of the new run")
        return original(*arguments)

    with instead(monkeypatch, method, sleep):
        late = run_shard(place.folder, plan, 0, 1)
    assert late.status is Status.FAILED
    assert "out was put aside for a new run while this process made parts of it" in (late.reason or "")
    assert place.names() == ["part-00000000.jsonl"]
    assert place.read("part-00000000.jsonl") == b"of the new run"


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "was decided on and is gone"), (b"x", "is not what was decided on"), (b"x" * 1000, "is not what was")],
    ids=["gone", "shorter", "other bytes"],
)
def test_finish_finds_a_part_that_is_not_what_was_decided(place: Place, content: bytes | None, words: str) -> None:
    plan, path = place.plan(), f"{place.root}/part-00000002.jsonl"
    run_shard(place.folder, plan, 0, 1)
    size = place.system.size(path)
    place.system.rm_file(path)
    if content is not None:
        place.system.pipe_file(path, content[:size])
    ended = finish(place.folder, plan)
    assert ended.status is Status.FAILED
    assert f"out/part-00000002.jsonl {words}" in (ended.reason or "")


@settings(max_examples=effort(3, 60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_schedule_of_kills_and_faults_leaves_every_row_once(
    place: Place, alone: dict[str, bytes], store: Any, data: Any
) -> None:
    for path in place.folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    store.store.clear()
    plan = place.plan()
    methods = st.sampled_from(["begin", "staging", "stage", "decide", "publish", "close", "tidy", None])
    for _ in range(data.draw(st.integers(1, 6))):
        count = data.draw(st.integers(1, 4))
        index, method = data.draw(st.integers(-1, count - 1)), data.draw(methods)
        die = data.draw(st.sampled_from([die_before, die_after]))
        do = die if method else lambda original, *rest: original(*rest)
        with (
            pytest.MonkeyPatch.context() as patch,
            suppress(Killed),
            instead(patch, method or "begin", do),
            failing(place.system, data.draw(st.dictionaries(st.integers(0, 60), st.booleans(), max_size=3))),
        ):
            _ = finish(place.folder, plan) if index < 0 else run_shard(place.folder, plan, index, count)
    run_shard(place.folder, plan, 0, 1)
    assert finish(place.folder, plan).status is Status.DONE
    assert (place.parts(), place.litter()) == (alone, [])
