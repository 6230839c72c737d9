"""What the ledger knows of the content of input files: entries are added, and those of no use go."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import FileState
from ortdeploy.ledger import contents
from ortdeploy.ledger.damage import FILE
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.opening import open_ledger
from ortdeploy.plan.made_by import MadeBy


def state(number: int, time: int = 1) -> FileState:
    return FileState(f"{number:04}.png", 10, time)


def digest(number: int) -> bytes:
    return number.to_bytes(16, "big")


def begin(ledger: Ledger, files: list[FileState]) -> None:
    made_by = MadeBy(name="d", profile=None, identity={}, layout=None)
    ledger.begin("out", made_by=made_by, job="j", run="r", files=files)


def packs(folder: Path) -> int:
    with closing(sqlite3.connect(folder / FILE)) as db:
        found: int = db.execute("SELECT COUNT(*) FROM contents").fetchone()[0]
        return found


def test_entries_of_many_files_are_packed_together(tmp_path: Path) -> None:
    known = {state(number): digest(number) for number in range(2500)}
    with open_ledger(tmp_path) as ledger:
        begin(ledger, [*known])
        ledger.note_contents("out", known.items())
        assert ledger.contents("out") == known
    assert packs(tmp_path) == 3


def test_packs_of_single_files_are_packed_together_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "_SMALL", 4)
    known = {state(number): digest(number) for number in range(9)}
    with open_ledger(tmp_path) as ledger:
        begin(ledger, [*known])
        for one in known.items():
            ledger.note_contents("out", [one])
        assert ledger.contents("out") == known
    assert packs(tmp_path) < 9


def test_entries_of_files_that_have_changed_go_before_they_are_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "_SPARE", 3)
    with open_ledger(tmp_path) as ledger:
        for time in range(20):
            begin(ledger, [state(0, time)])
            ledger.note_contents("out", [(state(0, time), digest(time))])
            assert ledger.contents("out")[state(0, time)] == digest(time)
            assert len(ledger.contents("out")) <= 5
            ledger.end("out", "done", None)


def test_damage_is_noticed_where_entries_are_packed_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_ledger(tmp_path) as ledger:
        begin(ledger, [state(0)])
        ledger.note_contents("out", [(state(0), digest(0))])
        with closing(sqlite3.connect(tmp_path / FILE)) as db:
            db.execute("UPDATE contents SET files = files + 1")
            db.commit()
        monkeypatch.setattr(contents, "_SPARE", -2)
        with pytest.raises(OrtdeployError, match="the digest of an input file is not what was written"):
            ledger.note_contents("out", [(state(0), digest(1))])
