"""Parts that several processes make on an object store: in memory, and on a real server that is far and unreliable."""

import hashlib
import json
import multiprocessing
import threading
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scale
from support import s3
from support.crews import FakeCrew, drive
from support.effort import effort
from support.fakes import FakeRuntime, double, refuse_negative
from support.forks import CAN_FORK, Fork
from support.jobs import execute, plan_for, save
from support.s3 import Once
from support.shards import OUT, finish, instead, killed_at_part, litter_of, on_store, run_shard

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.atomic import Written
from ortdeploy.files.names import BOUND
from ortdeploy.files.object_store import Upload
from ortdeploy.files.shared_store import SharedStore
from ortdeploy.ledger.open_plans import CLOSED, FOLDER, open_plans
from ortdeploy.parts.commit_log import CommitLog
from ortdeploy.plan.steps import Plan
from ortdeploy.results.results import Status

ROWS = 30  # four parts, the last one short
VALUES = [float(row) for row in range(ROWS)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The parts that one machine makes in a folder."""
    folder = tmp_path_factory.mktemp("alone")
    save(folder, VALUES)
    assert execute(folder, plan_for(folder, ROWS), FakeRuntime(double)).status is Status.DONE
    return {path.name: path.read_bytes() for path in sorted((folder / "out").glob("part-*"))}


def deployment(folder: Path, url: str = OUT) -> Plan:
    save(folder, VALUES)
    return on_store(plan_for(folder, ROWS), url)


def test_many_finished_plans_are_told_from_an_open_one_by_one_request(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not names(store)
    place, asked = SharedStore(OUT), []
    plans = [f"{number:064x}" for number in range(20)]
    for plan in plans:
        place.create(f"{FOLDER}/{plan}/{BOUND}", b"{}")
    for plan in plans[:-1]:
        place.create(f"{FOLDER}/{plan}/{CLOSED}", b"{}")
    place.create(f"{FOLDER}/{plans[-1]}/.part-0.d/{CLOSED}", b"{}")
    real = SharedStore._do  # noqa: SLF001

    def do(self: SharedStore, what: str, *arguments: Any) -> Any:
        asked.append(what)
        return real(self, what, *arguments)

    monkeypatch.setattr(SharedStore, "_do", do)
    assert (open_plans(place), asked) == (frozenset(plans[-1:]), ["listed", "read"])


class Asked:
    """Counts the requests to stores by what they are. First requests for names that end so are answered together."""

    def __init__(self, patch: pytest.MonkeyPatch, together: Sequence[str] = ()) -> None:
        self.counts: Counter[str] = Counter()
        real, barrier, left = SharedStore._do, threading.Barrier(max(len(together), 1), timeout=60), set(together)  # noqa: SLF001

        def do(place: SharedStore, what: str, name: str, act: Any) -> Any:
            self.counts[what] += 1
            for one in [one for one in left if name.endswith(one)]:
                left.discard(one)
                barrier.wait()
            return real(place, what, name, act)

        patch.setattr(SharedStore, "_do", do)


def test_only_the_process_that_begins_a_plan_lists_and_the_others_ask_as_often_as_the_model_says(
    tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = deployment(tmp_path)
    with monkeypatch.context() as patch:
        asked = Asked(patch)
        run_shard(tmp_path, plan, 0, 1)
    assert asked.counts["listed"] == 2
    asked = Asked(monkeypatch)
    run_shard(tmp_path, plan, 0, 1)
    assert parts(store)
    counts = asked.counts
    assert counts.pop("published") == 4
    assert counts == {"read": scale.BEGIN_READS + 4, "written": scale.BEGIN_WRITES - 1, "deleted": 1}


def test_what_finished_plans_have_made_is_asked_at_the_same_time(
    tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {"first_number": 10, "first_row": 0, "end": 8, "rows_per_part": 8}
    folders = [f"{FOLDER}/{number:064x}" for number in range(3)]
    for folder in folders:
        store.pipe_file(f"{OUT}/{folder}/{BOUND}", json.dumps({"parts": table}).encode())
        store.pipe_file(f"{OUT}/{folder}/{CLOSED}", b"{}")
    Asked(monkeypatch, together=[f"{folder}/{BOUND}" for folder in folders])
    assert run_shard(tmp_path, deployment(tmp_path), 0, 1).status is Status.DONE


@pytest.mark.parametrize("who", ["shard", "driver"])
def test_decisions_are_asked_for_at_the_same_time(
    tmp_path: Path, alone: dict[str, bytes], store: Any, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    plan = deployment(tmp_path)
    Asked(monkeypatch, together=[f"/part-{number:08d}.json" for number in range(4)])
    if who == "shard":
        assert run_shard(tmp_path, plan, 0, 1).status is Status.DONE
    else:
        assert drive(tmp_path, plan, FakeCrew(tmp_path, plan, 1)).status is Status.DONE
    assert parts(store) == alone


def names(store: Any) -> list[str]:
    """The objects in the output in memory."""
    return sorted(str(one).removeprefix("/bucket/out/") for one in store.find("/bucket/out"))


def parts(store: Any) -> dict[str, bytes]:
    return {one: store.cat_file(f"/bucket/out/{one}") for one in names(store) if one.startswith("part-")}


def test_a_plan_whose_withdrawal_was_cut_short_begins_anew(
    tmp_path: Path, alone: dict[str, bytes], store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process did not see whether a run is at work, for the store was away, nor could it delete anything."""
    plan = deployment(tmp_path)

    def withdraw_and_fail(_: Any, log: CommitLog, file: str, *__: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(SharedStore, "clear", fail)
            log.withdraw(file)

    def fail(*_: Any) -> None:
        raise OrtdeployError("away")

    with instead(monkeypatch, "settle", withdraw_and_fail):
        assert run_shard(tmp_path, plan, 0, 1).status is Status.FAILED
    assert run_shard(tmp_path, plan, 0, 1).status is Status.DONE
    assert finish(tmp_path, plan).status is Status.DONE
    assert (parts(store), litter_of(names(store))) == (alone, [])


def test_finish_with_a_ledger_that_does_not_know_what_one_machine_has_made_says_so(tmp_path: Path, store: Any) -> None:
    """Its machine began a run there too, which found the other one's files, or was killed before its first row."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    plan, other = deployment(tmp_path / "one"), deployment(tmp_path / "two")
    with killed_at_part(0):
        execute(tmp_path / "two", other, FakeRuntime(double))
    store.store.clear()
    assert execute(tmp_path / "one", plan, FakeRuntime(double)).status is Status.DONE
    assert run_shard(tmp_path / "one", plan, 0, 1).status is Status.NOTHING_TO_DO
    assert finish(tmp_path / "one", plan).status is Status.DONE
    failed = finish(tmp_path / "two", other)
    assert "does not know its part 0, which a run on one machine has made" in (failed.reason or "")
    (tmp_path / "two/.ortdeploy").rename(tmp_path / "two/.ortdeploy-before")
    made_again = finish(tmp_path / "two", other)
    assert (made_again.status, made_again.committed) == (Status.DONE, ROWS), made_again.reason


def test_a_shard_whose_ledger_does_not_know_what_one_machine_has_made_makes_none_of_it_again(
    tmp_path: Path, alone: dict[str, bytes], store: Any
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    plan, other = deployment(tmp_path / "one"), deployment(tmp_path / "two")
    with killed_at_part(2):
        execute(tmp_path / "one", plan, FakeRuntime(double))
    assert run_shard(tmp_path / "one", plan, 3, 4).status is Status.DONE
    refused = run_shard(tmp_path / "two", other, 0, 1, wrong)
    assert refused.refused
    assert "the ledger here lacks 2 of them" in (refused.reason or "")
    assert run_shard(tmp_path / "one", plan, 0, 1).status is Status.DONE
    assert finish(tmp_path / "one", plan).status is Status.DONE
    assert parts(store) == alone


def test_shards_of_a_machine_that_was_refused_make_nothing_over_parts_of_the_other_one(
    tmp_path: Path, alone: dict[str, bytes], store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    plan, other = deployment(tmp_path / "one"), deployment(tmp_path / "two")

    def sleep(upload: Upload) -> None:
        monkeypatch.undo()
        assert execute(tmp_path / "two", other, FakeRuntime(double), run_id="r2").status is Status.DONE
        upload.claim()

    monkeypatch.setattr(Upload, "claim", sleep)
    for late in (execute(tmp_path / "one", plan, FakeRuntime(wrong)), run_shard(tmp_path / "one", plan, 0, 1, wrong)):
        assert "is the output of another machine" in (late.reason or "")
    assert parts(store) == alone


def wrong(feeds: Any) -> Any:
    return {"y": double(feeds)["y"] + 1}


def test_what_is_published_while_an_output_is_put_aside_goes_too_and_an_interrupted_move_is_seen(
    tmp_path: Path, alone: dict[str, bytes], store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The beginnings of plans go first, so nothing is decided from then on; what tells of shards goes last."""
    plan, copy, moved = deployment(tmp_path), type(store).cp_file, list[str]()
    run_shard(tmp_path, plan, 0, 2)

    def publish_meanwhile(self: Any, path: str, there: str, **options: Any) -> None:
        moved.append(path)
        copy(self, path, there, **options)
        if len(moved) == 2:
            store.pipe_file("/bucket/out/part-00000003.jsonl", alone["part-00000003.jsonl"])

    monkeypatch.setattr(type(store), "cp_file", publish_meanwhile)
    Upload(OUT, tmp_path).put_aside("out.old")
    assert not names(store)
    assert moved[0].endswith(f"/{BOUND}")
    assert all("/_parts/" in one for one in moved[3:-1])
    assert moved[-1].endswith("part-00000003.jsonl")
    there = {str(one).rsplit("/", 1)[-1] for one in store.find("/bucket/out.old")}
    assert {"part-00000000.jsonl", "part-00000002.jsonl", "part-00000003.jsonl", "from-0.json", BOUND} <= there


def test_failed_rows_are_reported_on_the_store(tmp_path: Path, store: Any) -> None:
    save(tmp_path, [-1.0 if row in {3, 27} else value for row, value in enumerate(VALUES)])
    plan = on_store(plan_for(tmp_path, ROWS, max_failed=2), OUT)
    for index in range(2):
        run_shard(tmp_path, plan, index, 2, refuse_negative)
    ended = finish(tmp_path, plan)
    assert (ended.status, ended.committed, ended.failed) == (Status.DONE, ROWS - 2, 2)
    failed = [json.loads(line)["row"] for line in store.cat_file("/bucket/out/_failed.jsonl").splitlines()]
    assert failed == [3, 27]


def test_a_plan_of_a_lost_ledger_does_not_replace_parts_that_a_finished_plan_has_made(
    tmp_path: Path, alone: dict[str, bytes], store: Any
) -> None:
    plan = deployment(tmp_path)
    run_shard(tmp_path, plan, 0, 1)
    finish(tmp_path, plan)
    (tmp_path / ".ortdeploy/state.db").unlink()
    save(tmp_path, [*VALUES, 1.0])
    of_more_rows = on_store(plan_for(tmp_path, ROWS + 1), OUT)
    refused = run_shard(tmp_path, of_more_rows, 0, 1)
    assert refused.status is Status.FAILED
    assert f"has made the parts 0 to {len(alone) - 1} of memory://bucket/out" in (refused.reason or "")
    assert (parts(store), litter_of(names(store))) == (alone, [])


@pytest.mark.usefixtures("store")
def test_a_store_is_one_machine_s_until_a_plan_has_begun_there(tmp_path: Path) -> None:
    SharedStore(OUT).create(f"{FOLDER}/from-0.json", b"ab" * 32)  # its process was killed, or refused, after that
    Upload(OUT, tmp_path).check_alone()
    Upload(OUT, tmp_path).check(known=False)
    SharedStore(OUT).create(f"{FOLDER}/{'ab' * 32}/{BOUND}", b"{}")
    with pytest.raises(OrtdeployError, match="shards have made parts of"):
        Upload(OUT, tmp_path).check_alone()


def test_a_part_on_a_store_is_here_for_as_long_as_it_is_read(store: Any) -> None:
    store.pipe_file("/bucket/out/part-0.parquet", b"x")
    with SharedStore(OUT).local("part-0.parquet") as path:
        assert path.read_bytes() == b"x"
    assert not path.exists()
    with pytest.raises(FileNotFoundError), SharedStore(OUT).local("part-1.parquet"):
        pass


def test_a_scheme_that_cannot_decide_is_refused_before_any_part(tmp_path: Path) -> None:
    ended = run_shard(tmp_path, deployment(tmp_path, "sftp://localhost/out"), 0, 1)
    assert ended.status is Status.FAILED
    assert "sftp has no way to create a file that only the first of two processes gets" in (ended.reason or "")


def test_a_store_that_overwrites_is_refused_before_any_part(
    tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = type(store).pipe_file
    monkeypatch.setattr(type(store), "pipe_file", lambda self, path, data, **_: pipe(self, path, data))
    ended = run_shard(tmp_path, deployment(tmp_path), 0, 1)
    assert ended.status is Status.FAILED
    assert "a second put replaced the first one" in (ended.reason or "")
    assert names(store) == []


@pytest.mark.process
def test_shards_on_s3_leave_what_one_machine_leaves(tmp_path: Path, alone: dict[str, bytes], bucket: s3.Store) -> None:
    plan = deployment(tmp_path, bucket.url("out"))
    for index in (2, 0, 1):
        assert run_shard(tmp_path, plan, index, 3).status is Status.DONE
    assert finish(tmp_path, plan).status is Status.DONE
    assert (bucket.parts("out"), litter_of(bucket.names("out"))) == (alone, [])
    assert s3.local_copies(tmp_path) == []


@pytest.mark.process
@pytest.mark.quick("publish")
@pytest.mark.parametrize("method", ["decide", "publish"])
def test_on_s3_a_shard_that_slept_changes_nothing(
    tmp_path: Path, alone: dict[str, bytes], bucket: s3.Store, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = deployment(tmp_path, bucket.url("out"))
    before: dict[str, Any] = {}

    def states() -> dict[str, Any]:
        bucket.system.invalidate_cache()
        return {one["name"]: one["LastModified"] for one in bucket.system.ls(f"{bucket.bucket}/out", detail=True)
                if "/part-" in one["name"]}  # fmt: skip

    def sleep(original: Any, *arguments: Any) -> Any:
        run_shard(tmp_path, plan, 0, 1)
        finish(tmp_path, plan)
        before.update(states())
        return original(*arguments)

    with instead(monkeypatch, method, sleep):
        late = run_shard(tmp_path, plan, 0, 4, wrong if method == "decide" else double)
    assert late.status in {Status.DONE, Status.NOTHING_TO_DO}
    assert states() == before
    assert (bucket.parts("out"), litter_of(bucket.names("out"))) == (alone, [])


@pytest.mark.process
@pytest.mark.skipif(not CAN_FORK, reason="the processes are forks")
def test_of_many_processes_that_create_an_object_at_the_same_moment_one_is_first(
    tmp_path: Path, bucket: s3.Store
) -> None:
    number, keys = effort(4, 8), effort(10, 20)
    barrier = multiprocessing.Barrier(number, timeout=60)

    def race(who: int) -> None:
        place = SharedStore(bucket.url("out"))
        for key in range(keys):
            barrier.wait()
            if place.create(str(key), str(who).encode()):
                (tmp_path / f"{key} {who}").touch()

    processes = [Fork(partial(race, who)) for who in range(number)]
    assert [process.wait() for process in processes] == [0] * number
    won = [path.name.split() for path in tmp_path.iterdir()]
    assert sorted(int(key) for key, _ in won) == list(range(keys))
    assert all(bucket.read(f"out/{key}") == who.encode() for key, who in won)


_DECISION = r"/_parts/[0-9a-f]{64}/part-00000001\.json$"
_STAGED = r"/\.part-1\.[0-9a-f]{32}$"
_PART = r"/out/part-00000001\.jsonl$"


def _more(*given: Any) -> Any:
    """One more case, for the slow tests: packages wait before they try again."""
    return pytest.param(Once(*given), marks=pytest.mark.slow)


@pytest.mark.process
@pytest.mark.parametrize(
    "faults",
    [
        Once("PUT", _DECISION, s3.CUT_AFTER),
        Once("GET", _DECISION, s3.CUT_WITHIN, s3.CUT_BEFORE),
        _more("PUT", _DECISION, s3.CONFLICT),
        _more("PUT", _DECISION, s3.BROKEN),
        _more("PUT", _DECISION, s3.CUT_BEFORE),
        _more("PUT", _DECISION, s3.BUSY, s3.CUT_AFTER, s3.CONFLICT),
        _more("PUT", _STAGED, s3.BUSY, s3.CUT_AFTER),
        _more("PUT", _PART, s3.CUT_AFTER),
        _more("PUT", _PART, s3.BROKEN),
        _more("DELETE", _STAGED, s3.CUT_AFTER),
        _more("GET", _DECISION, s3.IN_PIECES),
    ],
    ids=lambda one: f"{one.method} {' '.join(one.faults)}",
)
def test_what_befalls_one_request_changes_nothing(
    tmp_path: Path, alone: dict[str, bytes], bucket: s3.Store, faults: Once
) -> None:
    plan = deployment(tmp_path, bucket.url("out"))
    bucket.faults = faults
    assert run_shard(tmp_path, plan, 0, 1).status is Status.DONE
    assert finish(tmp_path, plan).status is Status.DONE
    assert faults.is_used_up
    assert (bucket.parts("out"), litter_of(bucket.names("out"))) == (alone, [])


@pytest.mark.process
def test_a_server_that_refuses_without_naming_the_condition_decides_too(bucket: s3.Store) -> None:
    bucket.faults = lambda _request: s3.CONDITION_UNNAMED
    place = SharedStore(bucket.url("out"))
    place.make("_parts/plan")
    assert (place.create("a", b"first"), place.create("a", b"second"), place.read("a")) == (True, False, b"first")
    assert bucket.names("out") == ["a"]


@pytest.mark.process
def test_a_server_that_ignores_the_condition_is_refused_before_any_part(tmp_path: Path, bucket: s3.Store) -> None:
    bucket.faults = lambda _request: s3.UNCONDITIONAL
    ended = run_shard(tmp_path, deployment(tmp_path, bucket.url("out")), 0, 1)
    assert ended.status is Status.FAILED
    assert "(If-None-Match). So shards cannot decide there" in (ended.reason or "")
    assert bucket.names("out") == []


@pytest.mark.process
def test_a_part_in_many_pieces_is_uploaded_copied_and_known_again(
    bucket: s3.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of what was uploaded in pieces has another ETag; then its MD5 or its bytes tell."""
    content = np.random.default_rng(1).bytes(12 * 2**20)
    put = type(bucket.system)._put_file  # noqa: SLF001  a part of a hundred megabytes takes too long

    async def in_pieces(*given: Any, **more: Any) -> None:
        await put(*given, chunksize=5 * 2**20, **more)

    monkeypatch.setattr(type(bucket.system), "_put_file", in_pieces)
    place = SharedStore(bucket.url("out"))
    with place.staging("_parts/.part-0.aa") as path:
        path.write_bytes(content)
        marks = place.stage(path, "_parts/.part-0.aa")
    assert [method for method, path, _ in bucket.asked if "uploadId=" in path and method == "PUT"] == ["PUT"] * 3
    assert place.publish("_parts/.part-0.aa", "part-0")
    assert bucket.names("out") == ["part-0"]
    written = Written(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content), mtime_ns=0)
    assert place.holds("part-0", written, marks)
    assert place.holds("part-0", written, ())
    bucket.put("out/part-0", content[:-1] + b"?")
    assert not place.holds("part-0", written, marks)
    with pytest.raises(FileNotFoundError):
        place.holds("part-1", written, marks)


@pytest.mark.process
def test_a_store_that_forbids_says_so(tmp_path: Path, bucket: s3.Store) -> None:
    bucket.faults = lambda _request: s3.FORBIDDEN
    ended = run_shard(tmp_path, deployment(tmp_path, bucket.url("out")), 0, 1)
    assert ended.status is Status.FAILED
    assert "cannot be" in (ended.reason or "")
    assert "AccessDenied" in (ended.reason or "") or "Forbidden" in (ended.reason or "")
