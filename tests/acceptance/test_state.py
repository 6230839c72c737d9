"""`ortdeploy state backup` and `restore`: a ledger that was lost comes back, and only where it fits."""

import hashlib
import json
import os
import shutil
import sqlite3
import time
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli, deploy, read_rows

from ortdeploy.cli.main import main
from ortdeploy.events import log
from ortdeploy.state import memo

MANIFEST = """
version: 1
name: state
models: {double: {path: double.onnx, providers: [CPU]}}
jobs:
  run:
    model: double
    input: {path: inbox/*.npy, key: [path, row]}
    batch: {size: 1}
    output: {path: out, rows_per_part: 2}
"""


@pytest.fixture(scope="module")
def applied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a manifest whose job has run."""
    folder = tmp_path_factory.mktemp("applied")
    deploy(folder)
    (folder / "m.yaml").write_text(MANIFEST, encoding="utf-8")
    (folder / "inbox").mkdir()
    np.save(folder / "inbox/a.npy", np.ones((5, 4), dtype=np.float32))
    assert main(["apply", str(folder / "m.yaml"), "-q"]) == 0
    log.send_to(None)
    return folder


@pytest.fixture
def job(applied: Path, deployment: Path) -> Path:
    """A manifest whose job has run, in a folder of the test's own."""
    shutil.copytree(applied, deployment, dirs_exist_ok=True)
    return deployment / "m.yaml"


def state(cli: Cli, action: str, folder: Path, *more: str) -> tuple[int, str]:
    result = cli("state", action, folder / "copy.zip", "--state-dir", folder / ".ortdeploy", *more)
    return result.code, result.words


def test_a_lost_ledger_comes_back_and_its_job_goes_on(cli: Cli, deployment: Path, job: Path) -> None:
    code, words = state(cli, "backup", deployment)
    assert (code, words) == (0, f"{deployment}/.ortdeploy is copied to {deployment}/copy.zip: 1 output")
    assert state(cli, "backup", deployment)[0] == 1  # nothing is overwritten
    assert state(cli, "restore", deployment)[0] == 1
    shutil.rmtree(deployment / ".ortdeploy")
    assert "finished-output" in cli("apply", job).words
    found = cli(
        "state", "restore", deployment / "copy.zip", "--state-dir", deployment / ".ortdeploy", "--format", "json"
    )
    assert found.json["outputs"] == 1
    assert "nothing to do" in cli("apply", job).words
    np.save(deployment / "inbox/b.npy", np.ones((2, 4), dtype=np.float32))
    assert cli("apply", job).code == 0
    assert sorted(row["row"] for row in read_rows(deployment / "out")) == list(range(7))


@pytest.mark.slow
def test_a_board_without_a_clock_has_copies_too(
    cli: Cli, deployment: Path, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: 1000.0)
        for path in (deployment / ".ortdeploy").rglob("*"):
            os.utime(path, (1000, 1000))
        assert state(cli, "backup", deployment)[0] == 0
    shutil.rmtree(deployment / ".ortdeploy")
    assert state(cli, "restore", deployment)[0] == 0
    assert cli("apply", job).code == 0
    assert cli("verify", job).code == 0


def test_parts_that_a_copy_does_not_know_are_written_again(cli: Cli, deployment: Path, job: Path) -> None:
    assert state(cli, "backup", deployment)[0] == 0
    np.save(deployment / "inbox/b.npy", np.ones((2, 4), dtype=np.float32))
    assert cli("apply", job).code == 0
    after = {path.name: path.read_bytes() for path in (deployment / "out").glob("part-*")}
    shutil.rmtree(deployment / ".ortdeploy")
    assert state(cli, "restore", deployment)[0] == 0
    assert cli("apply", job).code == 0
    assert {path.name: path.read_bytes() for path in (deployment / "out").glob("part-*")} == after


def test_names_that_a_copy_may_give_twice_are_told(cli: Cli, deployment: Path, job: Path) -> None:
    job.write_text(MANIFEST.replace("rows_per_part: 2", "rows_per_part: 2, removable: true"), encoding="utf-8")
    assert cli("apply", job).code == 0
    assert state(cli, "backup", deployment)[0] == 0
    shutil.rmtree(deployment / ".ortdeploy")
    (deployment / "out/part-00000000.jsonl").unlink()
    code, words = state(cli, "restore", deployment)
    assert code == 0
    assert f"{deployment}/out: the next part is part-00000003, with rows from 5 on. If more was committed" in words
    shutil.rmtree(deployment / ".ortdeploy")
    assert len(json.loads(state(cli, "restore", deployment, "--format", "json")[1])["may_repeat"]) == 1


def test_a_copy_that_does_not_fit_changes_nothing(cli: Cli, deployment: Path, job: Path) -> None:
    assert state(cli, "backup", deployment, "-q") == (0, "")
    shutil.rmtree(deployment / ".ortdeploy")
    part = deployment / "out/part-00000001.jsonl"
    content = part.read_bytes()
    part.write_bytes(content[:-1])
    code, words = state(cli, "restore", deployment)
    assert code == 1
    assert "part-00000001.jsonl has" in words
    part.write_bytes(content)
    elsewhere = cli("state", "restore", deployment / "copy.zip", "--state-dir", deployment / "other")
    assert elsewhere.code == 1
    assert "names another ledger" in elsewhere.words
    assert not (deployment / ".ortdeploy/state.db").exists()
    assert not (deployment / "other/state.db").exists()
    part.unlink()  # may have been carried away; apply says so where it may not
    assert state(cli, "restore", deployment)[0] == 0
    assert "part-00000001.jsonl was committed and is gone" in cli("apply", job).words


@pytest.fixture(name="stored")
def made_on_a_store(cli: Cli, deployment: Path, store: Any) -> Path:
    """A manifest whose parts a shard has made on a store, and a copy of its ledger, which is lost; the store is used."""
    manifest = deployment / "m.yaml"
    manifest.write_text(MANIFEST.replace("path: out", 'path: "memory://out"'), encoding="utf-8")
    (deployment / "inbox").mkdir()
    np.save(deployment / "inbox/a.npy", np.ones((5, 4), dtype=np.float32))
    assert cli("plan", manifest, "--out", deployment / "plan.json").code == 0
    assert cli("apply", deployment / "plan.json", "--shard", "0/1").code == 0
    assert cli("finish", deployment / "plan.json").code == 0
    assert len(store.glob("/out/part-*")) == 3
    assert cli("verify", manifest).code == 0
    assert state(cli, "backup", deployment)[0] == 0
    shutil.rmtree(deployment / ".ortdeploy")
    return manifest


@pytest.mark.parametrize("how", ["size", "report"])
def test_a_copy_that_does_not_fit_what_is_on_a_store_changes_nothing(
    cli: Cli, deployment: Path, stored: Path, store: Any, how: str
) -> None:
    """Other bytes of the same length are known by the report that a later run has left beside them."""
    name = "/out/part-00000001.jsonl"
    content, report = store.cat_file(name), store.cat_file("/out/_run.json")
    other = content[:-1] if how == "size" else content.replace(b"2.0", b"3.0")
    store.pipe_file(name, other)
    if how == "report":
        digests = [hashlib.sha256(one).hexdigest().encode() for one in (content, other)]
        assert digests[0] in report
        store.pipe_file("/out/_run.json", report.replace(*digests))
    code, words = state(cli, "restore", deployment)
    found = f"has {len(other)} bytes instead of" if how == "size" else "holds other bytes than were written"
    assert (code, f"memory://out/part-00000001.jsonl {found}" in words) == (1, True), words
    assert not (deployment / ".ortdeploy/state.db").exists()
    store.pipe_file(name, content)
    store.pipe_file("/out/_run.json", report)
    assert state(cli, "restore", deployment)[0] == 0
    assert "nothing to do" in cli("apply", stored).words


def test_a_part_that_is_gone_from_a_store_may_be_carried_away_and_verify_tells(
    cli: Cli, deployment: Path, stored: Path, store: Any
) -> None:
    store.rm("/out/part-00000001.jsonl")
    store.pipe_file("/out/part-00000002.jsonl", store.cat_file("/out/part-00000002.jsonl").replace(b"2.0", b"3.0"))
    store.pipe_file("/out/_run.json", b"no report")
    assert state(cli, "restore", deployment)[0] == 0
    verified = cli("verify", stored)
    assert verified.code == 1
    assert "part-00000001.jsonl is gone" in verified.words
    assert "part-00000002.jsonl holds other bytes than were written" in verified.words
    assert "1 of 3 parts in memory://out are as they were written" in verified.words


def test_a_store_that_does_not_answer_is_told(
    cli: Cli, deployment: Path, stored: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise ConnectionError("no network")

    monkeypatch.setattr(type(store), "ls", refuse)
    code, words = state(cli, "restore", deployment)
    assert (code, "not compared with the copy: memory://out cannot be listed: no network" in words) == (0, True), words
    monkeypatch.setattr(type(store), "info", refuse)
    unread = cli("verify", stored)
    assert (unread.code, "memory://out cannot be listed: no network" in unread.words) == (1, True), unread.words


@pytest.mark.quick("cut", "other", "flipped", "twice", "note")
@pytest.mark.usefixtures("job")
@pytest.mark.parametrize("how", ["gone", "text", "cut", "other", "flipped", "twice", "note"])
def test_what_is_no_copy_is_told_in_words(cli: Cli, deployment: Path, how: str) -> None:
    copy = deployment / "copy.zip"
    assert state(cli, "backup", deployment)[0] == 0
    shutil.rmtree(deployment / ".ortdeploy")
    content = copy.read_bytes()
    if how == "gone":
        copy.unlink()
    elif how == "text":
        copy.write_text("no zip")
    elif how == "cut":
        copy.write_bytes(content[: len(content) // 2])
    elif how == "note":
        with zipfile.ZipFile(copy, "a") as archive:
            archive.writestr("last-good/../../elsewhere.json", b"{}")
    elif how == "flipped":
        copy.write_bytes(content[:200] + bytes([content[200] ^ 255]) + content[201:])
    else:
        with zipfile.ZipFile(copy, "w") as archive:
            archive.writestr("../state.db" if how == "other" else "state.db", b"no ledger")
    code, words = state(cli, "restore", deployment)
    assert code == 1, words
    assert "Traceback" not in words
    assert not (deployment / ".ortdeploy/state.db").exists()


def test_there_must_be_a_ledger_to_copy(cli: Cli, deployment: Path) -> None:
    code, words = state(cli, "backup", deployment)
    assert code == 1
    assert "holds no ledger" in words


@pytest.mark.slow
def test_notes_come_back_and_those_that_are_there_stay(cli: Cli, deployment: Path, job: Path) -> None:
    assert cli("apply", job, "--last-good", "--new-run", "--set", "jobs.run.output.rows_per_part=7").code == 0
    state_dir = deployment / ".ortdeploy"
    (state_dir / "told").mkdir()
    for name in (f"{'0' * 16}.txt", f"{'0' * 16}.profile"):
        (state_dir / "told" / name).write_text("digest\n/m.yaml\n")
    (state_dir / "told/mine.txt").write_text("another's")
    memo.put(state_dir, "tuning", "key", 64)
    notes = {
        path.relative_to(state_dir): path.read_bytes()
        for folder in ("last-good", "manifests", "told", "memo/tuning")
        for path in (state_dir / folder).iterdir()
        if path.name != "mine.txt"
    }
    assert len({path.parent for path in notes}) == 4
    assert state(cli, "backup", deployment)[0] == 0
    difference = cli("diff", job).out
    assert "rows_per_part" in difference
    shutil.rmtree(state_dir)
    assert "rows_per_part" not in cli("diff", job).out
    (state_dir / "told").mkdir(parents=True)
    (state_dir / f"told/{'0' * 16}.txt").write_text("newer")
    assert state(cli, "restore", deployment)[0] == 0
    notes[Path(f"told/{'0' * 16}.txt")] = b"newer"
    assert {path: (state_dir / path).read_bytes() for path in notes} == notes
    assert not (state_dir / "told/mine.txt").exists()
    assert cli("diff", job).out == difference


def test_a_copy_of_an_earlier_version_comes_back_without_what_it_has_measured(
    cli: Cli, deployment: Path, job: Path
) -> None:
    assert job.is_file()
    assert state(cli, "backup", deployment)[0] == 0
    with zipfile.ZipFile(deployment / "copy.zip", "a") as archive:
        archive.writestr("choices.json", "{}")
    shutil.rmtree(deployment / ".ortdeploy")
    assert state(cli, "restore", deployment)[0] == 0
    assert (deployment / ".ortdeploy/state.db").is_file()
    assert not (deployment / ".ortdeploy/choices.json").exists()


@pytest.mark.parametrize("name", ["manifests", "memo"])
def test_nothing_comes_back_through_a_link(cli: Cli, deployment: Path, job: Path, name: str) -> None:
    assert job.is_file()
    assert state(cli, "backup", deployment)[0] == 0
    shutil.rmtree(deployment / ".ortdeploy")
    (deployment / ".ortdeploy").mkdir()
    (deployment / "elsewhere").mkdir()
    (deployment / ".ortdeploy" / name).symlink_to(deployment / "elsewhere")
    code, words = state(cli, "restore", deployment)
    assert (code, f"{name} is a link" in words) == (1, True)
    assert not list((deployment / "elsewhere").iterdir())
    assert [path.name for path in (deployment / ".ortdeploy").iterdir()] == [name]


def test_a_copy_beside_a_live_run_is_of_one_moment(cli: Cli, deployment: Path, job: Path) -> None:
    with closing(sqlite3.connect(deployment / ".ortdeploy/state.db", isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        db.execute("UPDATE outputs SET status = 'failed'")
        assert state(cli, "backup", deployment)[0] == 0
        db.execute("ROLLBACK")
    shutil.rmtree(deployment / ".ortdeploy")
    assert state(cli, "restore", deployment)[0] == 0
    assert "nothing to do" in cli("apply", job).words
