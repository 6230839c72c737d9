"""Two plans that begin at the same moment on one output: one of them makes its parts, and the other is refused."""

import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import effort
from support.shards import Killed, die_after, instead

from ortdeploy.diagnostics import OrtdeployError, RefusedError
from ortdeploy.facts.contents import FileContents
from ortdeploy.facts.data import FileState, FileStates
from ortdeploy.files.shared_folder import SharedFolder
from ortdeploy.files.shared_place import SharedPlace
from ortdeploy.files.shared_store import SharedStore
from ortdeploy.ledger.open_plans import CLOSED, FOLDER, open_plans
from ortdeploy.ledger.records import Part
from ortdeploy.parts.commit_log import CommitLog, tables_in
from ortdeploy.parts.file_spans import Spans
from ortdeploy.parts.receipt import Ended, Receipt
from ortdeploy.plan.made_by import MadeBy
from ortdeploy.plan.part_table import PartTable

TABLE = PartTable(first_number=2, first_row=16, end=60, rows_per_part=8)
ONE, OTHER, THIRD, FOURTH = "ab" * 32, "cd" * 32, "ef" * 32, "ee" * 32


@pytest.fixture(params=["folder", "store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> SharedPlace:
    if request.param == "folder":
        return SharedFolder(tmp_path)
    request.getfixturevalue("store")
    return SharedStore("memory://bucket/out")


def log_of(place: SharedPlace, digest: str) -> CommitLog:
    return CommitLog(place, digest, TABLE, suffix=".jsonl", digits=8)


@pytest.mark.parametrize("quicker", [ONE, OTHER])
def test_of_two_plans_that_begin_at_the_same_moment_one_gets_the_output(
    place: SharedPlace, quicker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have looked for other plans, and found none, before either has made anything."""
    (slower,) = {ONE, OTHER} - {quicker}
    log = log_of(place, slower)
    look = log._check_others  # noqa: SLF001  the last look before anything is made

    def look_and_wait() -> None:
        look()
        log_of(place, quicker).begin(known=False)

    monkeypatch.setattr(log, "_check_others", look_and_wait)
    with pytest.raises(OrtdeployError, match=f"holds parts of another plan, {quicker[:12]}"):
        log.begin(known=False)
    assert open_plans(place) == {quicker}
    log_of(place, quicker).begin(known=False)
    with pytest.raises(OrtdeployError, match=quicker[:12]):
        log_of(place, slower).begin(known=False)


def begin_and_die(place: SharedPlace, digest: str, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    with monkeypatch.context() as patch, instead(patch, method, die_after), pytest.raises(Killed):
        log_of(place, digest).begin(known=False)


@pytest.mark.parametrize("method", ["_check_others", "_claim"])
def test_a_plan_whose_process_was_killed_as_it_began_blocks_no_other_one(
    place: SharedPlace, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    begin_and_die(place, ONE, monkeypatch, method)
    assert open_plans(place) == frozenset()
    log_of(place, OTHER).begin(known=False)
    assert open_plans(place) == {OTHER}
    with pytest.raises(RefusedError, match=OTHER[:12] if method == "_check_others" else "was given up"):
        log_of(place, ONE).begin(known=False)
    log_of(place, OTHER).begin(known=False)
    assert [digest for digest, _ in tables_in(place)] == [OTHER]
    assert (log_of(place, ONE).is_begun(), log_of(place, OTHER).is_begun()) == (False, True)


@pytest.mark.parametrize("method", ["_check_others", "_claim"])
def test_a_plan_whose_process_was_killed_as_it_began_is_begun_again(
    place: SharedPlace, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    begin_and_die(place, ONE, monkeypatch, method)
    log_of(place, ONE).begin(known=False)
    assert open_plans(place) == {ONE}
    with pytest.raises(RefusedError, match=ONE[:12]):
        log_of(place, OTHER).begin(known=False)


def test_a_third_plan_begins_if_two_were_killed(place: SharedPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    begin_and_die(place, ONE, monkeypatch, "_claim")
    begin_and_die(place, OTHER, monkeypatch, "_claim")
    log_of(place, THIRD).begin(known=False)
    assert open_plans(place) == {THIRD}
    for given_up in (ONE, OTHER):
        with pytest.raises(RefusedError, match="was given up"):
            log_of(place, given_up).begin(known=False)


@pytest.mark.parametrize("quicker", [ONE, OTHER])
def test_of_a_plan_that_slept_as_it_began_and_one_that_gives_it_up_one_gets_the_output(
    place: SharedPlace, quicker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other plan finds the claim and no parts; then either of them is the first to create `bound.json`."""
    begin_and_die(place, ONE, monkeypatch, "_claim")

    def wake_up(original: Any, log: CommitLog, *arguments: Any) -> Any:
        if quicker == ONE:
            log_of(place, ONE).begin(known=False)
        given_up = original(log, *arguments)
        if quicker == OTHER:
            with pytest.raises(RefusedError, match="was given up"):
                log_of(place, ONE).begin(known=False)
        return given_up

    with instead(monkeypatch, "_gives_up", wake_up):
        if quicker == OTHER:
            log_of(place, OTHER).begin(known=False)
        else:
            with pytest.raises(RefusedError, match=ONE[:12]):
                log_of(place, OTHER).begin(known=False)
    assert open_plans(place) == {quicker}


def test_a_claim_that_is_damaged_is_told(place: SharedPlace) -> None:
    place.make(FOLDER)
    place.create(f"{FOLDER}/from-2.json", b"../../etc")
    with pytest.raises(OrtdeployError, match=r"from-2\.json is damaged"):
        log_of(place, ONE).begin(known=False)


class Process(threading.Thread):
    """A process that begins a plan. Before each look and each file that it creates, it waits for its turn, or dies."""

    def __init__(self, folder: Path, digest: str) -> None:
        super().__init__(daemon=True)
        self.digest, self.may_go, self.waits = digest, threading.Semaphore(0), threading.Semaphore(0)
        self.is_killed = self.has_begun = self.is_over = False
        self._place = SharedFolder(folder)

    def run(self) -> None:
        with suppress(Killed, RefusedError):
            log_of(cast("SharedPlace", self), self.digest).begin(known=False)
            self.has_begun = True
        self.is_over = True
        self.waits.release()

    def step(self) -> None:
        """Let it go on to its next step, or to its end."""
        self.may_go.release()
        assert self.waits.acquire(timeout=60)

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._place, name)

        def in_turn(*arguments: Any) -> Any:
            self.waits.release()
            self.may_go.acquire()
            if self.is_killed:
                raise Killed
            return call(*arguments)

        return in_turn if name in {"create", "read", "look"} else call


@settings(max_examples=effort(30, 2000), deadline=None)
@given(st.data())
def test_in_any_order_of_any_processes_one_plan_begins_and_a_later_one_can(data: st.DataObject) -> None:
    digests = data.draw(st.lists(st.sampled_from([ONE, OTHER, THIRD]), min_size=2, max_size=4))
    with tempfile.TemporaryDirectory() as name:
        processes = [Process(Path(name), digest) for digest in digests]
        for one in processes:
            one.start()
            assert one.waits.acquire(timeout=60)
        while left := [one for one in processes if not one.is_over]:
            one = data.draw(st.sampled_from(left))
            one.is_killed = data.draw(st.integers(0, 9)) == 0
            one.step()
        begun = {one.digest for one in processes if one.has_begun}
        place = SharedFolder(Path(name))
        assert len(begun) <= 1
        assert begun <= open_plans(place)
        if not open_plans(place):
            log_of(place, FOURTH).begin(known=False)
            begun = {FOURTH}
        assert [digest for digest, _ in tables_in(place)] == sorted(open_plans(place))
        assert len(open_plans(place)) == 1


RAN: dict[str, Any] = {
    "session": None, "sessions_passed_over": {}, "layout": None, "providers": [], "placement": {}, "sessions": [], "memory": {"last_rows": {"resident_bytes": 1, "proportional_bytes": 1}},
}  # fmt: skip


def skipped(number: int, host: str = "a") -> Receipt:
    """The receipt of a part of which all rows were skipped."""
    rows = tuple(TABLE.part(number).rows)
    part = Part(
        number=number, start=rows[0], rows=8, committed=0, failed=0, skipped=8, skipped_rows=rows, file=None, bytes=0
    )
    worker = {"run": "r", "host": host}
    return Receipt(part=part, staged=None, failed=(), worker=worker, origin={}, spans=Spans(), ran=RAN, statistics={})


def test_the_first_decision_about_a_part_stands(place: SharedPlace) -> None:
    log, other = log_of(place, ONE), log_of(place, ONE)
    log.begin(known=False)
    part, next_part = TABLE.part(2), TABLE.part(3)
    assert log.decided(part) is None
    assert log.decide(part, skipped(2, "a")) == skipped(2, "a")
    assert other.decide(part, skipped(2, "b")) == skipped(2, "a")
    assert [log.decided(one) for one in (part, next_part)] == [skipped(2, "a"), None]
    assert list(log.all_rolled_forward([part, next_part])) == [(part, skipped(2, "a")), (next_part, None)]


def closed_by(log: CommitLog) -> tuple[list[Receipt], Ended]:
    """Close a plan with two parts of skipped rows; return what it was closed with."""
    log.begin(known=False)
    receipts = [skipped(2), skipped(3)]
    files = FileStates.pack(FileState(path=f"data/{one}.csv", size=one, mtime_ns=7) for one in range(1000))
    made_by = MadeBy(name="d", profile=None, identity={"model": "m"}, layout=None)
    ended = Ended(job="j", made_by=made_by, files=files, contents=FileContents(), run="r", status="done", reason=None)
    log.close(receipts, ended)
    return receipts, ended


def test_a_closed_plan_has_its_receipts_and_how_it_ended(place: SharedPlace) -> None:
    log = log_of(place, ONE)
    receipts, ended = closed_by(log)
    assert log.is_closed()
    found, how = log.closed()
    assert found == {one.part.number: one for one in receipts}
    assert (how.job, how.status, how.made_by, list(how.files)) == (ended.job, "done", ended.made_by, list(ended.files))
    assert open_plans(place) == set()


def test_only_what_a_closed_plan_needs_is_kept_and_its_files_take_little_room(place: SharedPlace) -> None:
    log = log_of(place, ONE)
    log.begin(known=False)
    place.create(f"{FOLDER}/{ONE}/part-00000002.json", b"{}")
    closed_by(log)
    assert not place.exists(f"{FOLDER}/{ONE}/part-00000002.json")
    assert len(place.read(f"{FOLDER}/{ONE}/{CLOSED}") or b"") < 30_000


def test_a_closed_plan_that_is_damaged_is_told(place: SharedPlace) -> None:
    log = log_of(place, ONE)
    closed_by(log)
    name = f"{FOLDER}/{ONE}/{CLOSED}"
    content = place.read(name) or b""
    place.delete(name)
    place.create(name, content.replace(b'"skipped": 8', b'"skipped": 7', 1))
    with pytest.raises(OrtdeployError, match="its digest does not fit"):
        log.closed()
