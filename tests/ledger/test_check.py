"""A ledger that is not what was written: whatever cell differs, rows come out complete, or the run refuses in words."""

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.effort import effort
from support.fakes import FakeRuntime, double, refuse_negative
from support.jobs import execute, plan_for, retrying, rows, save
from support.ledgers import BAD, ROWS, begun, finished, merging, plan_of, publishing, revised, unfinished

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.ledger import versions
from ortdeploy.ledger.cells import seal_of
from ortdeploy.ledger.check import find_contradiction
from ortdeploy.ledger.damage import FILE
from ortdeploy.ledger.opening import read_outputs
from ortdeploy.ledger.records import Begun, NewFile, OutputRecord, Part, Rewrite
from ortdeploy.results.results import JobResult, Status

SCENES = (unfinished, begun, finished, merging, publishing, revised)


@pytest.fixture(name="scenes", scope="module")
def make_scenes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for scene in SCENES:
        folder = made[scene.__name__] = tmp_path_factory.mktemp(scene.__name__)
        save(folder, [-1.0 - row if row in BAD else float(row) for row in range(ROWS)])
        os.utime(folder / "data.npy", (1, 1))
        scene(folder)
    return made


def cells(folder: Path) -> list[tuple[str, str, tuple[Any, ...]]]:
    """Return every cell: table, column, and the values of the row's key."""
    found = []
    with closing(sqlite3.connect(folder / ".ortdeploy" / FILE)) as db:
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall():
            info = db.execute(f"PRAGMA table_info({table})").fetchall()
            keys = [row[1] for row in info if row[5]]
            for key in db.execute(f"SELECT {', '.join(keys)} FROM {table}").fetchall():  # noqa: S608  ours
                found += [(table, row[1], key) for row in info]
    return found


def change(folder: Path, cell: tuple[str, str, tuple[Any, ...]], value: Any) -> bool:
    """Write into one cell; return whether that can be done."""
    table, column, key = cell
    with closing(sqlite3.connect(folder / ".ortdeploy" / FILE)) as db:
        keys = [row[1] for row in db.execute(f"PRAGMA table_info({table})") if row[5]]
        where = " AND ".join(f"{name} = ?" for name in keys)
        try:
            db.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (value, *key))  # noqa: S608  ours
        except (sqlite3.IntegrityError, OverflowError):
            return False
        db.commit()
        return True


def tree(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "out").iterdir())}


def attempt(folder: Path, *, retry: bool) -> JobResult | None:
    """Plan and run; None where that was refused in words."""
    try:
        result = execute(folder, plan_of(folder, retry=retry), FakeRuntime(double if retry else refuse_negative))
    except OrtdeployError:
        return None
    assert result.reason or result.status is not Status.FAILED
    return None if result.status is Status.FAILED else result


VALUES = st.one_of(
    st.none(), st.integers(-3, 40), st.sampled_from([2**40, -(2**40), 8.5, 16.0, float("nan"), b"\xff", b""]),
    st.sampled_from([
        "", "x", "../../x", "/etc/passwd", "part-00000001.jsonl", "part-1.jsonl", ".part-00000000.jsonl.merged", "[]", "{}", "[1]",
        "[0, 2]", "null", "{", "done", "running", "failed", "../other", "0" * 64, "2026-01-01T00:00:00+00:00", "null\x00",
        '{"seconds": 1}', '{"state": "UEsDBA=="}',
    ]),
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=effort(8, 120), deadline=None)
@given(data=st.data())
def test_whatever_cell_is_changed_rows_are_complete_or_the_run_refuses(
    scenes: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    scene = data.draw(st.sampled_from(sorted(scenes)))
    folder = tmp_path_factory.mktemp("changed") / "job"
    shutil.copytree(scenes[scene], folder)
    cell = data.draw(st.sampled_from(cells(folder)))
    if not change(folder, cell, data.draw(VALUES)):
        return
    before = tree(folder)
    if attempt(folder, retry=False) is None or attempt(folder, retry=True) is None:
        left = tree(folder)
        assert {name: left.get(name) for name in before if name.startswith("part-")} == {
            name: content for name, content in before.items() if name.startswith("part-")
        }
        return
    assert sorted(rows(folder)) == [(row, (-1.0 - row if row in BAD else row) * 2.0) for row in range(ROWS)]


@pytest.mark.parametrize(
    ("scene", "statement"),
    [
        ("unfinished", "UPDATE parts SET rows = 4, committed = 3 WHERE number = 1"),  # 4 rows would run twice
        ("finished", "UPDATE parts SET committed = committed + 1, failed = failed - 1 WHERE number = 0"),
        (
            "merging",
            "UPDATE rewrites SET entry = replace(replace(entry, '.part', '../../.part'), '\"part', '\"../../part')",
        ),
        ("merging", "UPDATE rewrites SET entry = replace(entry, 'part-00000000', 'part-00000001')"),
        ("merging", "UPDATE rewrites SET entry = replace(entry, '[[1, 1]]', '[[0, 1]]')"),
        ("unfinished", "UPDATE outputs SET first_row = 12"),  # where no part begins, however far the job is
        ("finished", "UPDATE inputs SET path = CAST('other.npy' AS BLOB)"),
        ("finished", "DELETE FROM failures WHERE row = 13"),
        ("unfinished", "DELETE FROM parts WHERE number = 0"),
        ("finished", "UPDATE parts SET file = '../../x' WHERE number = 2"),
        ("begun", "UPDATE begun SET file = '../../x'"),
        ("begun", "UPDATE begun SET file = NULL, sha256 = NULL"),
        ("begun", "UPDATE begun SET sha256 = NULL"),
        ("begun", "UPDATE begun SET rows = 3, committed = 2"),  # its name says 4
        ("begun", "UPDATE begun SET number = 1"),
        ("begun", "UPDATE begun SET start = 4"),
        ("begun", "UPDATE begun SET failed = 0, committed = 4"),
        ("begun", "DELETE FROM failures"),
        ("begun", "UPDATE begun SET provenance = 'x'"),
        ("begun", "UPDATE outputs SET status = 'done'"),
    ],
)
@pytest.mark.parametrize("sealed", [False, True])
def test_what_contradicts_itself_is_refused_though_its_seals_fit(
    scenes: dict[str, Path], tmp_path: Path, scene: str, statement: str, *, sealed: bool
) -> None:
    folder = tmp_path / "job"
    shutil.copytree(scenes[scene], folder)
    with closing(sqlite3.connect(folder / ".ortdeploy" / FILE, isolation_level=None)) as db:
        db.execute(statement)
        if sealed:
            for table in ("parts", "begun"):
                db.execute(f"UPDATE {table} SET seal = NULL")  # noqa: S608  ours
            if "inputs" not in statement:
                db.execute("UPDATE outputs SET inputs_seal = NULL")
            for *cells, seal in db.execute("SELECT part, entry, seal FROM rewrites").fetchall():
                db.execute("UPDATE rewrites SET seal = ? WHERE seal = ?", (seal_of(*cells), seal))
            versions._seal_all(db)  # noqa: SLF001  as somebody who knows how it is done
    before = tree(folder)
    try:
        result = execute(folder, plan_of(folder), FakeRuntime(refuse_negative))
        reason = result.reason if result.status is Status.FAILED else "it ran"
    except OrtdeployError as error:
        reason = str(error)
    assert "the ledger state.db is damaged (" in (reason or "")
    assert "Restore it from a copy" in (reason or "")
    assert tree(folder) == before


def sound() -> OutputRecord:
    part = Part(
        number=0,
        start=0,
        rows=4,
        committed=2,
        failed=1,
        skipped=1,
        skipped_rows=(3,),
        file="part-00000000.csv",
        bytes=9,
    )
    last = Part(number=1, start=4, rows=2, committed=0, failed=2, skipped=0, file=None, bytes=0)
    return OutputRecord(
        output="out", deployment="d", job="j", identity={}, status="running", run="r", started="", ended=None,
        reason=None, first_row=4, batch_size=None, statistics={}, part_digits=8, parts=(part, last),
    )  # fmt: skip


def of_part(which: int, **changes: Any) -> Callable[[OutputRecord], OutputRecord]:
    def changed(record: OutputRecord) -> OutputRecord:
        parts = list(record.parts)
        parts[which] = replace(parts[which], **changes)
        return replace(record, parts=tuple(parts))

    return changed


def test_a_sound_record_has_no_contradiction() -> None:
    record = sound()
    assert find_contradiction(record, ".csv") is None
    assert find_contradiction(record) is None
    assert find_contradiction(replace(record, parts=(), first_row=0, status="done")) is None


@pytest.mark.parametrize(
    "contradict",
    [
        of_part(0, number=1), of_part(0, start=1), of_part(1, start=5), of_part(0, rows=5), of_part(0, committed=3),
        of_part(0, committed=-2, failed=5), of_part(0, skipped_rows=(4,)), of_part(0, skipped_rows=()),
        of_part(0, file=None), of_part(1, file="part-00000001.csv"), of_part(0, file="part-00000.csv"),
        of_part(0, file="part-00000000.parquet"), of_part(0, file="../part-00000000.csv"), of_part(0, bytes=-1),
        of_part(0, sha256="x"), lambda record: replace(record, first_row=3), lambda record: replace(record, first_row=-4),
        lambda record: replace(record, status="done"), lambda record: replace(record, part_digits=7),
        lambda record: replace(record, batch_size=0), lambda record: replace(record, parts=record.parts[1:]),
    ],
)  # fmt: skip
def test_every_contradiction_of_a_record_is_found(contradict: Callable[[OutputRecord], OutputRecord]) -> None:
    assert find_contradiction(contradict(sound()), ".csv")


@pytest.mark.parametrize(
    "changes",
    [
        {"number": 1}, {"number": 3}, {"start": 5}, {"rows": 0, "committed": 0, "failed": 0}, {"rows": 5}, {"file": "part-00000002.csv"},
        {"file": None}, {"file": ".part-00000002.csv.2.begun"}, {"file": "../.part-00000002.csv.3.begun"}, {"sha256": None},
        {"sha256": "x"}, {"bytes": -1}, {"skipped_rows": (6,)}, {"committed": 0, "failed": 3},
    ],
)  # fmt: skip
def test_every_contradiction_of_a_part_that_was_begun_is_found(changes: dict[str, Any]) -> None:
    record = sound()
    part = Part(
        number=2, start=6, rows=3, committed=2, failed=1, skipped=0, file=".part-00000002.csv.3.begun", bytes=9, sha256="0" * 64,
    )  # fmt: skip
    assert find_contradiction(replace(record, begun=Begun(part=part)), ".csv") is None
    alone = replace(part, number=0, start=0, file=".part-00000000.csv.3.begun")
    assert find_contradiction(replace(record, parts=(), first_row=0, begun=Begun(part=alone))) is None
    assert find_contradiction(replace(record, begun=Begun(part=replace(part, **changes))), ".csv")


def test_an_entry_of_a_failed_row_that_nobody_wrote_is_refused(scenes: dict[str, Path], tmp_path: Path) -> None:
    for number, entry in enumerate(["{}", "[]", json.dumps({"row": 1, "attempts": "2"})]):
        folder = tmp_path / str(number)
        shutil.copytree(scenes["finished"], folder)
        change(folder, ("failures", "entry", ("../out", 1)), entry)
        result = execute(folder, retrying(plan_for(folder, ROWS, max_failed=9)), FakeRuntime(double))
        assert "failed row 1 is not what was written" in (result.reason or "")
        assert len(read_outputs(folder / ".ortdeploy")) == 1


def replaced(**changes: Any) -> Rewrite:
    """What is to take the place of the first part of a sound record, with its one failed row given a result."""
    record = sound()
    part = replace(record.parts[0], committed=record.parts[0].committed + 1, failed=0)
    file = NewFile(temporary=f".{part.file}.replaced", file=str(part.file), bytes=9, sha256="0" * 64, mtime_ns=1)
    one = Rewrite(part=part, files=(file,), removed=(), spans=((part.start, part.rows),))
    parts = changes.pop("part", {})
    files = changes.pop("file", {})
    return replace(one, part=replace(part, **parts), files=(replace(file, **files),), **changes)


def test_a_sound_replacement_is_no_contradiction() -> None:
    record = sound()
    record = replace(record, rewrites=(replaced(),), leaving=((0, 1),))
    assert find_contradiction(record, ".csv") is None


@pytest.mark.parametrize(
    "changes",
    [
        {"part": {"number": 7}}, {"part": {"rows": 3}}, {"part": {"revision": 1}}, {"part": {"failed": 1}},
        {"part": {"file": "../part-00000000.csv"}}, {"part": {"withdrawn": ((90, 1),)}},
        {"file": {"file": "part-00000001.csv"}}, {"file": {"temporary": "part-00000000.csv"}}, {"file": {"bytes": -1}},
        {"file": {"sha256": "x"}}, {"removed": ("../x",)}, {"spans": ((0, 99),)}, {"spans": ((1, 1), (0, 1))},
    ],
)  # fmt: skip
def test_every_contradiction_of_a_replacement_is_found(changes: dict[str, Any]) -> None:
    record = sound()
    assert find_contradiction(replace(record, rewrites=(replaced(**changes),)), ".csv")


@pytest.mark.parametrize("leaving", [((0, 99),), ((1, 1), (0, 1)), ((0, 0),), ((-1, 2),)])
def test_rows_that_leave_their_parts_are_in_one(leaving: tuple[tuple[int, int], ...]) -> None:
    record = sound()
    assert find_contradiction(replace(record, leaving=leaving), ".csv")
