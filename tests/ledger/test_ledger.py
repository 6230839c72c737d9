"""The ledger and the files beside it."""

import json
import os
import sqlite3
import tempfile
from contextlib import ExitStack, closing, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.effort import effort
from support.fakes import FakeRuntime, refuse_negative
from support.jobs import (
    changed,
    execute,
    plan_for,
    save,
)
from support.nfs import Client

from ortdeploy.diagnostics import LockedError, OrtdeployError
from ortdeploy.durations import Histogram
from ortdeploy.facts.data import FileState
from ortdeploy.files.atomic import open_cached, open_whole, remove_temporaries
from ortdeploy.ledger import cells
from ortdeploy.ledger.cells import old_seal_of_inputs, seal_of
from ortdeploy.ledger.changes import note_spans, read_spans
from ortdeploy.ledger.damage import FILE
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.opening import copy_of_ledger, open_ledger, read_ledger, read_outputs
from ortdeploy.ledger.output_lock import crash_of_holder, hold_output, is_live
from ortdeploy.ledger.records import Part, output_file, output_key
from ortdeploy.ledger.stored_records import StoredRecords
from ortdeploy.ledger.versions import bring_up_to_date
from ortdeploy.plan.made_by import MadeBy
from ortdeploy.results.rows import FailedRow


def made_by(identity: dict[str, str]) -> MadeBy:
    return MadeBy(name="d", profile=None, identity=identity, layout=None)


PART = Part(number=0, start=0, rows=3, committed=2, failed=1, skipped=0, file="part-00000000.csv", bytes=9)
BAD = FailedRow(row=1, source="a.csv:2", stage="read", code="empty-value", message="no", key={"id": 7})


def test_a_commit_leaves_its_journal_for_the_next_one(tmp_path: Path) -> None:
    """To make and to delete a file at each commit takes several times as long, and a folder has to be synced for it."""
    journal = tmp_path / f"{FILE}-journal"
    with open_ledger(tmp_path) as ledger:
        ledger.begin("out", made_by=made_by({"model": "1"}), job="j", run="r")
        first = journal.stat()
        ledger.commit_part("out", PART, [BAD])
        assert journal.stat().st_ino == first.st_ino
        many = [FileState(path=f"{number:064}", size=1, mtime_ns=1) for number in range(30_000)]
        ledger.begin("out", made_by=made_by({"model": "1"}), job="j", run="r", files=many)
        ledger.begin(
            "out", made_by=made_by({"model": "2"}), job="j", run="s", files=[one._replace(size=2) for one in many]
        )
    assert not any(journal.read_bytes()[:28])  # so it is not played back
    assert journal.stat().st_size <= 1024 * 1024
    with read_ledger(tmp_path) as read:
        assert read is not None
        assert [(one.run, len(one.parts)) for one in read.outputs()] == [("s", 1)]


def test_what_is_committed_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    with open_ledger(tmp_path) as ledger:
        ledger.begin("out", made_by=made_by({"model": "1"}), job="j", run="r")
        ledger.commit_part("out", PART, [BAD])
        ledger.end("out", "done", None)
    with open_ledger(tmp_path) as ledger:
        record = ledger.output("out")
        assert record is not None
        assert (record.parts, record.status, record.rows, dict(record.identity)) == ((PART,), "done", 3, {"model": "1"})
        (entry,) = ledger.failures("out")
        assert json.loads(entry)["key"] == {"id": 7}
    assert read_outputs(tmp_path) == (record,)


def test_an_output_is_read_again_only_if_something_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, read = StoredRecords.record, []

    def counted(self: StoredRecords, row: Any) -> Any:
        read.append(row)
        return real(self, row)

    monkeypatch.setattr(StoredRecords, "record", counted)
    with open_ledger(tmp_path) as ledger, closing(sqlite3.connect(tmp_path / FILE)) as other:
        assert ledger.output("out") is None
        ledger.begin("out", made_by=made_by({"model": "1"}), job="j", run="r")
        first = ledger.output("out")
        assert ledger.output("out") is first
        ledger.commit_part("out", PART, [])
        second = ledger.output("out")
        assert second is not None
        assert second.parts == (PART,)
        other.execute("UPDATE outputs SET status = 'failed'")
        assert ledger.output("out") is second
        other.commit()
        third = ledger.output("out")
        assert third is not None
        assert third.status == "failed"
        with suppress(ZeroDivisionError), ledger._transaction() as within:  # noqa: SLF001  that is taken back
            within.execute("UPDATE outputs SET status = 'done'")
            assert getattr(ledger.output("out"), "status", None) == "done"
            raise ZeroDivisionError
        assert ledger.output("out") == third
    assert len(read) == 5


def test_an_output_is_read_as_of_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, refused = StoredRecords._begun, []  # noqa: SLF001  the last that is read

    def meanwhile(self: StoredRecords, output: str) -> Any:
        with closing(sqlite3.connect(tmp_path / FILE, timeout=0)) as other:
            try:
                other.execute("UPDATE parts SET committed = 0")
                other.commit()
            except sqlite3.OperationalError as error:
                refused.append(str(error))
        return real(self, output)

    with open_ledger(tmp_path) as ledger:
        ledger.begin("out", made_by=made_by({}), job="j", run="r")
        ledger.commit_part("out", PART, ())
        monkeypatch.setattr(StoredRecords, "_begun", meanwhile)
        first = ledger.output("out")
        with ledger.at_one_moment():
            assert ledger.output("out") == first
    assert refused == ["database is locked"] * 2


def test_failures_of_a_part_that_was_given_up_go_when_the_job_begins_again(tmp_path: Path) -> None:
    with open_ledger(tmp_path) as ledger:
        ledger.begin("out", made_by=made_by({}), job="j", run="r")
        ledger.note_failures("out", 0, [BAD])
        assert len(list(ledger.failures("out"))) == 1
        ledger.begin("out", made_by=made_by({}), job="j", run="r2")
        assert list(ledger.failures("out")) == []


FILES = tuple(FileState(path=f"in/{number}\udcff", size=number, mtime_ns=10**18 + number) for number in range(5))


def test_the_seal_over_input_files_before_version_5_is_the_same_however_many_are_taken_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_ledger(tmp_path) as ledger:
        ledger.begin("out", made_by=made_by({}), job="j", run="r", files=FILES)
        ledger.begin("none", made_by=made_by({}), job="j", run="r")
    with closing(sqlite3.connect(tmp_path / FILE)) as db, db:
        seals = {output: old_seal_of_inputs(db, output) for output in ("out", "none")}
        rows = [[n, os.fsencode(one.path).hex(), one.size, one.mtime_ns, 0] for n, one in enumerate(FILES)]
        assert seals == {"out": seal_of(0, rows), "none": seal_of(0, [])}
        monkeypatch.setattr(cells, "_AT_ONCE", 2)
        assert old_seal_of_inputs(db, "out") == seals["out"]
    with open_ledger(tmp_path) as ledger:
        assert [one.state for one in ledger.inputs("out")] == list(FILES)


@pytest.mark.parametrize(
    "damage",
    [
        "SET size = 9 WHERE size = 4",
        "SET size = 3 + 4294967291 WHERE size = 2",
        "SET size = 7 - size WHERE size IN (3, 4)",
        "SET number = 7 - number WHERE number IN (3, 4)",
        "SET done = 1 WHERE size = 0",
        "SET mtime_ns = 'x' WHERE size = 1",
        "SET size = 4.5 WHERE size = 4",
        "SET path = x'696e2f39' WHERE size = 4",
        "SET path = CAST(path AS TEXT) WHERE size = 4",
        "outputs SET first_row = 0.5",
    ],
)
def test_damage_to_any_input_file_is_noticed(tmp_path: Path, damage: str) -> None:
    with open_ledger(tmp_path) as ledger:
        ledger.begin("out", made_by=made_by({}), job="j", run="r", files=FILES)
        ledger.check_inputs("out")
    with closing(sqlite3.connect(tmp_path / FILE)) as db, db:
        db.execute(f"UPDATE {damage}" if damage.startswith("outputs") else f"UPDATE inputs {damage}")
    with open_ledger(tmp_path) as ledger:
        for read in (ledger.check_inputs, ledger.inputs):
            with pytest.raises(OrtdeployError, match="list of input files is not what was written"):
                read("out")


Steps = list[tuple[list[int], list[int], str]]


@settings(max_examples=effort(15, 150), deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.lists(st.integers(0, 6), max_size=4, unique=True),
            st.lists(st.integers(0, 6), max_size=2),
            st.sampled_from(["done", "failed"]),
        ),
        max_size=4,
    ),
    few=st.integers(0, 5),
)
def test_a_seal_with_exchanged_terms_is_the_seal_over_all_input_files(steps: Steps, few: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(cells, "FEW_INPUTS", few)
        with open_ledger(Path(folder)) as ledger:
            for at, (numbers, gone, status) in enumerate(steps):
                files = [FileState(path=f"in/{number}\udcff", size=at, mtime_ns=10**18 + number) for number in numbers]
                names = [f"in/{number}\udcff" for number in gone]
                ledger.begin("out", made_by=made_by({}), job="j", run="r", files=files, gone=names)
                ledger.check_inputs("out")
                if at == 0:
                    ledger.commit_part("out", PART, ())
                ledger.end("out", status, None)
                ledger.check_inputs("out")


@pytest.mark.parametrize("moment", ["begin", "end"])
def test_damage_to_the_list_of_input_files_outlasts_a_run_on_a_few(tmp_path: Path, moment: str) -> None:
    new = FileState(path="in/new", size=1, mtime_ns=1)
    with open_ledger(tmp_path) as ledger:
        ledger.begin("out", made_by=made_by({}), job="j", run="r", files=FILES)
        ledger.end("out", "done", None)
        if moment == "end":
            ledger.begin("out", made_by=made_by({}), job="j", run="s", files=[new])
    with closing(sqlite3.connect(tmp_path / FILE)) as db, db:
        db.execute("UPDATE inputs SET size = 9 WHERE size = 4")
    with open_ledger(tmp_path) as ledger:
        if moment == "begin":
            ledger.begin("out", made_by=made_by({}), job="j", run="s", files=[new])
        ledger.end("out", "done", None)
        with pytest.raises(OrtdeployError, match="list of input files is not what was written"):
            ledger.check_inputs("out")


def test_failed_rows_of_files_that_could_be_read_are_not_gone_through_for_the_others(tmp_path: Path) -> None:
    with open_ledger(tmp_path) as ledger:
        ledger.begin("out", made_by=made_by({}), job="j", run="r", files=[FileState("a", 1, 1)])
        rows = [FailedRow(row=row, source="a", stage="run", code="x", message="") for row in range(20_000)]
        ledger.note_failures("out", 0, rows)
    steps = count()
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as connection:
        connection.set_progress_handler(lambda: next(steps) and 0, 100)
        Ledger(connection, tmp_path).inputs("out")
    assert next(steps) < 50


def test_many_files_and_their_rows_are_written_by_few_statements(tmp_path: Path) -> None:
    files = [FileState(f"in/{number:03}\udcff", number, number) for number in range(1000)]
    spans = [(one.path, number, 1) for number, one in enumerate(files)]
    with open_ledger(tmp_path):
        pass
    told: list[str] = []
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as connection:
        connection.set_trace_callback(told.append)
        ledger = Ledger(connection, tmp_path)
        ledger.begin("out", made_by=made_by({}), job="j", run="r", files=files)
        ledger.commit_part("out", replace(PART, rows=1000, committed=999), (), spans=spans)
        connection.set_trace_callback(None)
        assert [(one.state, one.span) for one in ledger.inputs("out")] == [
            (one, (number, 1)) for number, one in enumerate(files)
        ]
    assert len(told) < 100


@settings(max_examples=effort(15, 150), deadline=None)
@given(
    commits=st.lists(
        st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 9)), max_size=7), max_size=3
    ),
    at_once=st.integers(1, 9),
)
def test_of_spans_of_a_file_with_one_first_row_the_longest_counts(
    commits: list[list[tuple[int, int, int]]], at_once: int
) -> None:
    expected: dict[bytes, tuple[int, int]] = {}
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db, pytest.MonkeyPatch.context() as patch:
        patch.setattr(cells, "_OF_A_STATEMENT", at_once)
        bring_up_to_date(db)
        Ledger(db, Path()).begin("out", made_by=made_by({}), job="j", run="r")
        for spans in commits:
            note_spans(db, "out", ((f"in/{number}\udcff", first_row, rows) for number, first_row, rows in spans))
            for number, first_row, rows in spans:
                before = expected.get(f"in/{number}".encode() + b"\xff", (first_row, 0))
                longest = max(rows, before[1]) if before[0] == first_row else rows
                expected[f"in/{number}".encode() + b"\xff"] = first_row, longest
        assert read_spans(db, "out") == expected


def test_files_are_done_with_their_run_as_they_were_then(tmp_path: Path) -> None:
    with open_ledger(tmp_path) as ledger:
        ledger.begin("out", made_by=made_by({}), job="j", run="r", files=FILES)
        assert not ledger.are_done("out", FILES)
        ledger.end("out", "done", None)
        assert ledger.are_done("out", FILES)
        assert ledger.are_done("out", FILES[1:3])
        assert not ledger.are_done("out", [*FILES, FILES[0]._replace(path="in/new")])
        assert not ledger.are_done("out", [FILES[0]._replace(size=7)])
        ledger.note_gone("out", [FILES[0].path])
        assert ledger.are_done("out", FILES)


def test_a_forgotten_output_is_gone_with_its_parts(tmp_path: Path) -> None:
    with open_ledger(tmp_path) as ledger:
        ledger.begin("out", made_by=made_by({}), job="j", run="r")
        ledger.commit_part("out", PART, [BAD])
        ledger.forget("out")
        assert ledger.output("out") is None
        ledger.begin("out", made_by=made_by({}), job="j", run="r")
        record = ledger.output("out")
        assert record is not None
        assert record.parts == ()


def test_every_commit_is_synchronised_to_the_disk(tmp_path: Path) -> None:
    extra = 3
    with open_ledger(tmp_path) as ledger:
        assert ledger._connection.execute("PRAGMA synchronous").fetchone() == (extra,)  # noqa: SLF001  the promise itself


def test_a_corrupt_ledger_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"this is not a database, but it is long enough to look like one" * 20)
    with pytest.raises(OrtdeployError, match=r"state\.db"), open_ledger(tmp_path):
        pass
    with pytest.raises(OrtdeployError, match=r"state\.db"):
        read_outputs(tmp_path)


def test_a_ledger_of_a_later_version_is_refused(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / FILE)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(OrtdeployError, match="format version 99"), open_ledger(tmp_path):
        pass


def test_reading_does_not_make_a_ledger(tmp_path: Path) -> None:
    assert read_outputs(tmp_path / "state") == ()
    assert not (tmp_path / "state").exists()


def test_a_ledger_that_another_machine_has_just_made_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard without it would count its parts from the first one again."""
    state, client = tmp_path / ".ortdeploy", Client(monkeypatch)
    assert read_outputs(state) == ()
    with client.elsewhere(), open_ledger(state) as ledger:
        ledger.begin("out", made_by=made_by({}), job="j", run="r")
    assert [one.job for one in read_outputs(state)] == ["j"]


def test_a_copy_of_a_ledger_that_another_machine_has_just_made_is_not_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, client = tmp_path / ".ortdeploy", Client(monkeypatch)
    assert not (state / FILE).exists()
    with client.elsewhere(), open_ledger(state) as ledger:
        ledger.begin("out", made_by=made_by({}), job="j", run="r")
    with copy_of_ledger(state) as ledger:
        assert ledger.output("out")


@pytest.mark.parametrize(
    ("output", "shown"),
    [("../outbox/run", "outbox/run"), ("../../far", "{}/far"), ("outputs/s3%3A%2F%2Fbucket%2Frun", "s3://bucket/run")],
)
def test_an_output_that_is_held_is_named_as_its_user_knows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, shown: str
) -> None:
    state = tmp_path / "site/.ortdeploy"
    state.mkdir(parents=True)
    monkeypatch.chdir(state.parent)
    with hold_output(state, output), pytest.raises(LockedError) as held, hold_output(state, output):
        pass
    assert str(held.value).startswith(f"{shown.format(tmp_path)} is held by a live run: process")


def test_the_lock_is_held_once_and_says_by_whom(tmp_path: Path) -> None:
    with hold_output(tmp_path, "out"), pytest.raises(LockedError, match="process"), hold_output(tmp_path, "out"):
        pass
    with hold_output(tmp_path, "out"):
        pass


def test_a_run_that_was_killed_left_no_crash_and_one_that_crashed_did(tmp_path: Path) -> None:
    assert crash_of_holder(tmp_path, "out") is None
    with hold_output(tmp_path, "out") as holder:
        written = holder.read_bytes()
        assert crash_of_holder(tmp_path, "out") is None
    assert crash_of_holder(tmp_path, "out") is None
    holder.write_bytes(written)  # as a kill leaves it
    assert crash_of_holder(tmp_path, "out") is None
    holder.write_bytes(written + b"Fatal Python error: Aborted\n\nThread 0x1\xff")
    assert crash_of_holder(tmp_path, "out") == "Fatal Python error: Aborted"


def test_whether_a_run_is_live_can_be_told_without_disturbing_it(tmp_path: Path) -> None:
    assert not is_live(tmp_path, "out")
    with hold_output(tmp_path, "out"):
        assert is_live(tmp_path, "out")
    assert not is_live(tmp_path, "out")


def test_a_state_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OrtdeployError, match="cannot be made"), hold_output(tmp_path / "file" / "state", "out"):
        pass


def test_output_names_move_with_the_state_directory(tmp_path: Path) -> None:
    assert output_key(tmp_path / "a" / "outbox", tmp_path / "a" / ".ortdeploy") == "../outbox"


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "part"

    def half() -> None:
        with open_whole(path) as file:
            file.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half()
    assert list(tmp_path.iterdir()) == []
    with open_whole(path) as file:
        file.write(b"whole")
        assert not path.exists()
    assert path.read_bytes() == b"whole"
    (tmp_path / ".part.partial").touch()
    remove_temporaries(tmp_path)
    assert [child.name for child in tmp_path.iterdir()] == ["part"]


def test_a_file_that_can_be_made_again_appears_whole_without_a_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half() -> None:
        with open_cached(path) as file:
            file.write(b"half")
            raise ZeroDivisionError

    def wait(_: int) -> None:
        raise AssertionError("nobody needs it after a power cut")

    monkeypatch.setattr(os, "fsync", wait)
    path = tmp_path / "known.json"
    with open_cached(path) as file:
        file.write(b"whole")
        assert not path.exists()
    with pytest.raises(ZeroDivisionError):
        half()
    assert {child.name: child.read_bytes() for child in tmp_path.iterdir()} == {"known.json": b"whole"}


def test_a_part_that_is_read_again_is_checked_again_only_if_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = []

    def counted(*given: Any) -> str:
        checked.append(given[0])
        return seal_of(*given)

    with open_ledger(tmp_path) as ledger:
        ledger.begin("out", made_by=made_by({}), job="j", run="r")
        for number in range(3):
            ledger.commit_part("out", replace(PART, number=number, start=3 * number), ())
        monkeypatch.setattr(cells, "seal_of", counted)
        first, again = ledger.output("out"), ledger.output("out")
        assert first == again
        assert checked == [0, 1, 2]
        with closing(sqlite3.connect(tmp_path / FILE)) as other:
            other.execute("UPDATE parts SET committed = 3 WHERE number = 1")
            other.commit()
        with pytest.raises(OrtdeployError, match="part 1"):
            ledger.output("out")


def test_percentiles_are_within_a_bucket() -> None:
    histogram = Histogram()
    for milliseconds in range(1, 1001):
        histogram.add(milliseconds / 1000)
    for share in (0.5, 0.9, 0.99, 0.999):
        found = histogram.percentile(share)
        assert found is not None
        assert share <= found <= share * 1.03
    assert Histogram().percentile(0.5) is None


def test_a_ledger_that_was_only_begun_is_none(tmp_path: Path) -> None:
    (tmp_path / FILE).touch()
    assert read_outputs(tmp_path) == ()
    with open_ledger(tmp_path) as ledger:
        assert ledger.outputs() == ()


@pytest.mark.parametrize(
    "content",
    [b"this is no database, but it is long enough to look like one " * 20, b"SQLite format 3\x00" + b"\xff" * 4096],
)
@pytest.mark.parametrize(
    "use", [open_ledger, read_ledger, partial(hold_output, output="out"), partial(is_live, output="out")]
)
def test_connections_to_what_is_damaged_are_closed(
    tmp_path: Path, content: bytes, use: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[sqlite3.Connection] = []
    real = sqlite3.connect

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        opened.append(real(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", connect)
    for path in (tmp_path / FILE, output_file(tmp_path, "locks", "out", ".db")):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    with pytest.raises(OrtdeployError), ExitStack() as stack:
        stack.enter_context(use(tmp_path))
    assert opened
    for connection in opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")


def test_a_holder_file_that_nobody_wrote_is_no_reason(tmp_path: Path) -> None:
    with hold_output(tmp_path, "out"):
        (holder,) = (tmp_path / "locks").glob("*.json")
        holder.write_text('{"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}')
        with pytest.raises(LockedError, match=r"held by a live run$"), hold_output(tmp_path, "out"):
            pass


def test_rows_that_failed_one_after_the_other_count_over_an_interruption(tmp_path: Path) -> None:
    values = [*range(6), -1, -1, -1, -1, *range(10, 16)]
    save(tmp_path, values)
    plan = changed(plan_for(tmp_path, 16, max_failed=9), errors={"max_consecutive": 3})
    for _ in range(2):
        result = execute(tmp_path, plan, FakeRuntime(refuse_negative))
        assert result.committed == 6
        assert "rows failed one after the other" in (result.reason or "")
