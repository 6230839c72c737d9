"""Ledgers of older format versions, as the ortdeploy of then left them, go on to complete rows; nothing older reads newer ones.

`data/ledger-v2` and `data/ledger-v3` hold two each: a job that ended within a part, and a retry that was killed when a
merge had been begun. Each was dumped as SQL beside its parts.
"""

import json
import os
import shutil
import sqlite3
import zlib
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.fakes import Counter, FakeRuntime, double, refuse_negative
from support.fuse import killed_at
from support.inbox import Inbox
from support.jobs import execute, failed, plan_for, report, retrying, rows, save
from support.logs import capture_logs
from support.power_loss import STATE

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.ledger import cells, opening, versions
from ortdeploy.ledger.changes import OF_CHANGES
from ortdeploy.ledger.contents import TABLE as CONTENTS
from ortdeploy.ledger.damage import FILE
from ortdeploy.ledger.opening import open_ledger, read_ledger, read_outputs
from ortdeploy.ledger.versions import LEDGER_VERSION
from ortdeploy.plan.steps import Plan, RunJob
from ortdeploy.results.results import Status

DATA = Path(__file__).parents[1] / "data"
ROWS = 30
BAD = (1, 13, 20)


HIDDEN = {".merged", ".begun"}
KEPT = "state-v3.db"


def bring_back(name: str, folder: Path, version: int = 2) -> Plan:
    """Put an older ledger with its parts and its input into a folder; return the plan of its job."""
    data = DATA / f"ledger-v{version}" / name
    save(folder, [-1.0 - row if row in BAD else float(row) for row in range(ROWS)])
    os.utime(folder / "data.npy", (1, 1))
    (folder / "out").mkdir()
    for path in data.glob("part-*"):
        shutil.copy(path, folder / "out" / (f".{path.name}" if path.suffix in HIDDEN else path.name))
    plan = plan_for(folder, ROWS, max_failed=9)
    step = plan.steps[-1]
    assert isinstance(step, RunJob)
    state = folder / ".ortdeploy"
    state.mkdir()
    with closing(sqlite3.connect(state / FILE)) as db:
        db.executescript((data / "state.sql").read_text())
        db.execute("UPDATE outputs SET identity = ?", (json.dumps(dict(step.identity)),))  # digests of now
        db.commit()
    return plan


def version_of(folder: Path) -> int:
    with closing(sqlite3.connect(folder / ".ortdeploy" / FILE)) as db:
        found: int = db.execute("PRAGMA user_version").fetchone()[0]
        return found


def test_a_job_that_version_2_left_unfinished_goes_on_and_keeps_its_names(tmp_path: Path) -> None:
    plan = bring_back("interrupted", tmp_path)
    assert [part.rows for part in read_outputs(tmp_path / ".ortdeploy")[0].parts] == [8, 4]
    assert version_of(tmp_path) == 2
    result = execute(tmp_path, plan, FakeRuntime(refuse_negative))
    assert (result.status, result.committed, result.failed) == (Status.DONE, 27, 3)
    assert version_of(tmp_path) == LEDGER_VERSION
    assert [row for row, _ in rows(tmp_path)] == [row for row in range(ROWS) if row not in BAD]
    (record,) = read_outputs(tmp_path / ".ortdeploy")
    assert [(part.start, part.rows, part.file) for part in record.parts] == [
        (0, 8, "part-00000.jsonl"), (8, 4, "part-00001.jsonl"), (12, 4, "part-00002.jsonl"),
        (16, 8, "part-00003.jsonl"), (24, 6, "part-00004.jsonl"),
    ]  # fmt: skip
    assert [part.sha256 is None for part in record.parts] == [True, True, False, False, False]
    assert execute(tmp_path, retrying(plan), FakeRuntime(double)).committed == ROWS
    assert [row for row, _ in rows(tmp_path)] == list(range(ROWS))
    assert [part["number"] for part in report(tmp_path)["parts"] if part["sha256"] is None] == [1]  # as it was


@pytest.mark.parametrize("is_renamed", [False, True])
def test_a_merge_that_version_2_left_is_completed(tmp_path: Path, *, is_renamed: bool) -> None:
    plan = bring_back("merging", tmp_path)
    if is_renamed:
        (tmp_path / "out/.part-00001.jsonl.merged").replace(tmp_path / "out/part-00001.jsonl")
    assert execute(tmp_path, retrying(plan), FakeRuntime(double)).committed == ROWS
    assert [row for row, _ in rows(tmp_path)] == list(range(ROWS))
    assert failed(tmp_path) == []
    assert sorted(path.name for path in (tmp_path / "out").glob("*part-*")) == [f"part-{n:05d}.jsonl" for n in range(4)]


def test_what_version_3_has_begun_is_gone_on_with(tmp_path: Path) -> None:
    plan = bring_back("interrupted", tmp_path, 3)
    assert read_outputs(tmp_path / ".ortdeploy")[0].begun is not None
    seen = Counter()
    result = execute(tmp_path, plan, FakeRuntime(refuse_negative), observer=seen)
    assert (result.status, result.committed, result.failed) == (Status.DONE, 27, 3)
    assert seen.started[0][1] == 4  # the kept rows do not run again
    assert version_of(tmp_path) == LEDGER_VERSION
    assert execute(tmp_path, retrying(plan), FakeRuntime(double)).committed == ROWS
    assert [row for row, _ in rows(tmp_path)] == list(range(ROWS))


def test_a_merge_that_version_3_left_is_completed(tmp_path: Path) -> None:
    plan = bring_back("merging", tmp_path, 3)
    assert execute(tmp_path, retrying(plan), FakeRuntime(double)).committed == ROWS
    assert [row for row, _ in rows(tmp_path)] == list(range(ROWS))
    assert sorted(path.name for path in (tmp_path / "out").glob("*part-*")) == [f"part-{n:08d}.jsonl" for n in range(4)]


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("UPDATE parts SET bytes = bytes + 1 WHERE number = 2", "what stands there of part 2"),
        ("UPDATE merges SET bytes = bytes + 1", "what is to become of part 0"),
    ],
)
def test_what_contradicts_its_seal_does_so_after_a_migration_too(tmp_path: Path, statement: str, what: str) -> None:
    plan = bring_back("merging", tmp_path, 3)
    with closing(sqlite3.connect(tmp_path / ".ortdeploy" / FILE)) as db:
        db.execute(statement)
        db.commit()
    result = execute(tmp_path, plan, FakeRuntime(double))
    assert result.status is Status.FAILED
    assert f"{what} is not what was written" in str(result.reason)


@pytest.mark.parametrize("version", [2, 3])
def test_a_migrated_ledger_has_the_tables_of_a_new_one(tmp_path: Path, version: int) -> None:
    bring_back("merging", tmp_path, version)
    tables = []
    for folder in (tmp_path / ".ortdeploy", tmp_path / "new"):
        with open_ledger(folder), closing(sqlite3.connect(folder / FILE)) as db:
            names = [
                name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
            ]
            tables.append({name: {row[1] for row in db.execute(f"PRAGMA table_info({name})")} for name in names})
    assert tables[0] == tables[1]


def test_reading_a_ledger_of_version_2_does_not_change_it(tmp_path: Path) -> None:
    bring_back("merging", tmp_path)
    before = (tmp_path / ".ortdeploy" / FILE).read_bytes()
    (record,) = read_outputs(tmp_path / ".ortdeploy")
    assert (record.rows, record.part_digits) == (ROWS, 5)
    assert (tmp_path / ".ortdeploy" / FILE).read_bytes() == before


def as_version_4(folder: Path) -> None:
    """Make a ledger one of version 4, which has the same tables but those that later versions have brought."""
    without(folder, 4, *OF_CHANGES, CONTENTS)


def without(folder: Path, version: int, *tables: str) -> None:
    """Make a ledger one of an older version, which does not have some tables."""
    with closing(sqlite3.connect(folder / ".ortdeploy" / FILE)) as db:
        db.execute(
            "CREATE TABLE merges (output, part, temporary, file, bytes, rows, sha256, mtime_ns, revision, deployment, seal)"
        )
        for table in tables:
            db.execute(f"DROP TABLE {table}")
        if "rewrites" not in tables:
            db.execute("ALTER TABLE rewrites RENAME TO replacements")
        db.execute(f"PRAGMA user_version = {version}")
        db.commit()


def test_of_files_that_version_5_has_run_no_content_is_known(tmp_path: Path) -> None:
    save(tmp_path, range(10))
    plan = plan_for(tmp_path, 10)
    execute(tmp_path, plan, FakeRuntime(double))
    with open_ledger(tmp_path / ".ortdeploy") as ledger:
        assert [state.path for state in ledger.contents(ledger.key(tmp_path / "out"))] == ["data.npy"]
    without(tmp_path, 5, CONTENTS)
    assert execute(tmp_path, plan, FakeRuntime(double)).status is Status.NOTHING_TO_DO
    assert version_of(tmp_path) == LEDGER_VERSION
    with open_ledger(tmp_path / ".ortdeploy") as ledger:
        assert ledger.contents(ledger.key(tmp_path / "out")) == {}


def as_version_6(folder: Path) -> None:
    """Make a ledger one of version 6, which has a row for each content that it knows."""
    with open_ledger(folder / ".ortdeploy") as ledger:
        known = {name: ledger.contents(name) for name in (one.output for one in ledger.outputs())}
    without(folder, 6, CONTENTS)
    with closing(sqlite3.connect(folder / ".ortdeploy" / FILE)) as db:
        db.execute(
            "CREATE TABLE contents (output REFERENCES outputs ON DELETE CASCADE, path, size, mtime_ns, digest, seal)"
        )
        for output, contents in known.items():
            for (name, *state), digest in contents.items():
                path, cells = os.fsencode(name), (*state, digest)
                seal = zlib.crc32(repr(cells).encode(), zlib.crc32(path))
                db.execute("INSERT INTO contents VALUES (?, ?, ?, ?, ?, ?)", (output, path, *cells, seal))
        db.commit()


def test_what_version_6_knows_of_contents_stays_known(tmp_path: Path) -> None:
    save(tmp_path, range(10))
    execute(tmp_path, plan_for(tmp_path, 10), FakeRuntime(double))
    with open_ledger(tmp_path / ".ortdeploy") as ledger:
        known = ledger.contents(ledger.key(tmp_path / "out"))
    as_version_6(tmp_path)
    with open_ledger(tmp_path / ".ortdeploy") as ledger:
        assert ledger.contents(ledger.key(tmp_path / "out")) == known != {}
    assert version_of(tmp_path) == LEDGER_VERSION


def test_damage_to_what_version_6_knows_of_contents_is_not_forgotten(tmp_path: Path) -> None:
    save(tmp_path, range(10))
    execute(tmp_path, plan_for(tmp_path, 10), FakeRuntime(double))
    as_version_6(tmp_path)
    with closing(sqlite3.connect(tmp_path / ".ortdeploy" / FILE)) as db:
        db.execute("UPDATE contents SET size = size + 1")
        db.commit()
    with open_ledger(tmp_path / ".ortdeploy") as ledger, pytest.raises(OrtdeployError, match="not what was written"):
        ledger.contents(ledger.key(tmp_path / "out"))


def test_rows_that_version_4_has_run_stay_and_its_files_have_no_rows_that_are_known(tmp_path: Path) -> None:
    save(tmp_path, range(10))
    plan = plan_for(tmp_path, 10)
    execute(tmp_path, plan, FakeRuntime(double))
    as_version_4(tmp_path)
    assert [part.rows for part in read_outputs(tmp_path / ".ortdeploy")[0].parts] == [8, 2]
    assert execute(tmp_path, plan, FakeRuntime(double)).status is Status.NOTHING_TO_DO
    assert version_of(tmp_path) == LEDGER_VERSION
    with open_ledger(tmp_path / ".ortdeploy") as ledger:
        assert [one.span for one in ledger.inputs(ledger.key(tmp_path / "out"))] == [None]


def test_files_without_rows_are_told_from_those_of_which_nothing_was_noted(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path).make()
    inbox.put("a", [1, 2])
    inbox.put("b", [])
    inbox.apply()
    with open_ledger(tmp_path / STATE) as ledger:
        assert [one.span for one in ledger.inputs(ledger.key(inbox.out))] == [(0, 2), (0, 0)]


class Killed(BaseException):
    """Stands for a kill."""


@pytest.mark.parametrize(
    ("module", "where", "old"),
    [
        (cells, "seal_of", 2),
        (cells, "seal_of_inputs", 2),
        (versions, "_seal_all", 2),
        (cells, "seal_of", 3),
        (versions, "_seal_all", 3),
        (versions, "_unseal_version_3", 3),
    ],
)
def test_a_migration_that_is_killed_leaves_the_old_version(
    tmp_path: Path, module: ModuleType, where: str, old: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = bring_back("interrupted", tmp_path, old)
    before = dump(tmp_path)

    def die(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(module, where, die)
        with pytest.raises(Killed), open_ledger(tmp_path / ".ortdeploy"):
            pass
    assert dump(tmp_path) == before
    assert version_of(tmp_path) == old
    assert execute(tmp_path, plan, FakeRuntime(refuse_negative)).status is Status.DONE


def dump(folder: Path, file: str = FILE) -> list[str]:
    with closing(sqlite3.connect(folder / ".ortdeploy" / file)) as db:
        return [f"version {db.execute('PRAGMA user_version').fetchone()}", *db.iterdump()]


@pytest.mark.parametrize("version", [2, 3])
def test_an_older_ledger_is_kept_before_it_is_migrated_and_that_is_said_once(tmp_path: Path, version: int) -> None:
    bring_back("merging", tmp_path, version)
    before, said = dump(tmp_path), []
    for opened in (read_ledger, open_ledger, open_ledger):
        with capture_logs() as logs, opened(tmp_path / ".ortdeploy"):
            said.append([(one["event"], one["version"], one["now"], one["kept"]) for one in logs])
    assert said == [[], [("ledger.kept", version, LEDGER_VERSION, f"state-v{version}.db")], []]
    assert dump(tmp_path, f"state-v{version}.db") == before


def test_a_new_ledger_is_no_older_one_s(tmp_path: Path) -> None:
    with capture_logs() as logs, open_ledger(tmp_path):
        pass
    assert logs == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [FILE, f"{FILE}-journal"]


def test_a_kill_leaves_the_old_ledger_or_the_new_one_with_a_copy_of_the_old_one(tmp_path: Path) -> None:
    for event in count(1):
        folder = tmp_path / str(event)
        folder.mkdir()
        bring_back("interrupted", folder, 3)
        before = dump(folder)
        with killed_at(event) as fuse, open_ledger(folder / ".ortdeploy"):
            pass
        assert dump(folder, KEPT if version_of(folder) == LEDGER_VERSION else FILE) == before
        with open_ledger(folder / ".ortdeploy"):
            pass
        assert dump(folder, KEPT) == before
        assert sorted(path.name for path in (folder / ".ortdeploy").glob("*.db")) == [KEPT, FILE]
        if not fuse.blew:
            break
    assert fuse.met[-3:] == ["unlink", "replace", "commit"]


def test_the_copy_is_durable_before_the_ledger_is_migrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bring_back("interrupted", tmp_path, 3)
    before = dump(tmp_path)
    synced = []

    def note(folder: Path) -> None:
        synced.append((version_of(tmp_path), dump(tmp_path, KEPT) == before, folder))

    monkeypatch.setattr(opening, "sync_folder", note)
    with open_ledger(tmp_path / ".ortdeploy"):
        pass
    assert synced == [(3, True, tmp_path / ".ortdeploy")]


@pytest.mark.parametrize("in_the_way", ["state-v3.db", ".state-v3.db.partial-journal"])
def test_a_ledger_that_cannot_be_kept_is_not_migrated(tmp_path: Path, in_the_way: str) -> None:
    bring_back("interrupted", tmp_path, 3)
    before = dump(tmp_path)
    (tmp_path / ".ortdeploy" / in_the_way).mkdir()
    with pytest.raises(OrtdeployError, match=r"state-v3\.db cannot be written"), open_ledger(tmp_path / ".ortdeploy"):
        pass
    assert dump(tmp_path) == before


@pytest.mark.parametrize("open_it", [open_ledger, read_ledger])
def test_a_ledger_of_the_version_after_this_is_refused(tmp_path: Path, open_it: Callable[[Path], Any]) -> None:
    with closing(sqlite3.connect(tmp_path / FILE)) as db:
        db.execute(f"PRAGMA user_version = {LEDGER_VERSION + 1}")
    with pytest.raises(OrtdeployError, match=f"version {LEDGER_VERSION + 1}.*newer"), open_it(tmp_path):
        pass
