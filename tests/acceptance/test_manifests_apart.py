"""Manifests of one command stand apart: what one of them cannot do stops no other, and the exit code tells the worst."""

import itertools
import json
import os
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import MANIFEST, Cli, read_rows
from support.models import scale_model

from ortdeploy.cli.applying import runner
from ortdeploy.cli.children.apply import run_plan
from ortdeploy.cli.exit_codes import worst_of
from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.ledger.damage import FILE
from ortdeploy.ledger.output_lock import hold_output
from ortdeploy.plan.steps import Plan

SECOND = """\
  second:
    model: double
    input: {path: data.npy, key: [row]}
    output: {path: outbox/second, format: jsonl}
  reader:
    model: double
    input: {job: run, columns: {x: y}}
    output: {path: outbox/reader, format: jsonl}
"""


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A folder with two manifests, each with its own state folder, a and b."""
    for name in "ab":
        folder = tmp_path / name
        folder.mkdir()
        scale_model(folder / "double.onnx")
        np.save(folder / "data.npy", np.arange(80, dtype=np.float32).reshape(20, 4))
        (folder / "m.yaml").write_text(MANIFEST.replace("demo", f"demo-{name}"))
    return tmp_path


def make_garbage(path: Path) -> None:
    path.write_bytes(b"garbage" * 1000)


def make_newer(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")


@pytest.mark.parametrize(
    ("spoil", "words"), [(make_garbage, "state.db is damaged"), (make_newer, "state.db has format version 99")]
)
def test_a_ledger_that_cannot_be_read_stops_its_own_manifest_alone(
    two: Path, cli: Cli, spoil: Callable[[Path], None], words: str
) -> None:
    (two / "a/.ortdeploy").mkdir()
    spoil(two / "a/.ortdeploy" / FILE)
    for command in ("apply", "status", "plan"):
        result = cli(command, two / "a/m.yaml", two / "b/m.yaml")
        assert result.code == 1, command
        assert "a/m.yaml:1:1: error[unworkable-manifest]" in result.words
        assert words in result.words
        assert len(read_rows(two / "b/outbox/run")) == 20
    assert "done" in cli("status", two / "a/m.yaml", two / "b/m.yaml").out


def test_a_locked_output_stops_its_own_job_alone(two: Path, cli: Cli) -> None:
    with (two / "a/m.yaml").open("a") as file:
        file.write(SECOND)
    with hold_output(two / "a/.ortdeploy", "../outbox/run"):
        result = cli("apply", two / "a", two / "b")
    assert result.code == 4
    assert "a/outbox/run is held by a live run" in result.words
    assert "it waits" not in result.words
    assert 'job "run", whose rows it reads, has committed none' in result.words
    assert [len(read_rows(two / one)) for one in ("a/outbox/second", "b/outbox/run")] == [20, 20]
    assert not (two / "a/outbox/run").exists()
    assert cli("apply", two / "a", two / "b").code == 0
    assert len(read_rows(two / "a/outbox/reader")) == 20


def test_two_jobs_whose_folders_are_one_by_a_link_are_refused(two: Path, cli: Cli) -> None:
    manifest = two / "a/m.yaml"
    manifest.write_text(manifest.read_text() + SECOND.replace("outbox/second", "link/second"))
    (two / "a/outbox/run/second").mkdir(parents=True)
    (two / "a/link").symlink_to("outbox/run")
    result = cli("plan", manifest)
    assert result.code == 1
    assert result.words.count("error[unwritable-output]") == 2
    assert f"link/second leads to {two}/a/outbox/run/second, and outbox/run, where job" in result.words.replace(
        "  ", ""
    )


@pytest.mark.slow
def test_a_folder_that_another_manifest_has_just_begun_is_refused(two: Path, cli: Cli) -> None:
    (two / "a/outbox").mkdir()
    (two / "b/outbox").symlink_to("../a/outbox")
    for manifest in (two / "a/m.yaml", two / "b/m.yaml"):
        manifest.write_text(manifest.read_text().replace("outbox/run", "outbox"))
    result = cli("apply", two / "a", two / "b", "--allow-root", two)
    assert result.code == 1
    assert 'b/outbox is the output of job "run", which the ledger ../.ortdeploy/state.db knows.' in result.words
    assert len(read_rows(two / "a/outbox")) == 20
    assert cli("apply", two / "a").code == 0
    assert cli("status", two / "a").code == 0


def only_b(error: Exception, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs plans, and fails with an error for those of a."""

    def run_of(plan: Plan, *arguments: Any, **options: Any) -> Any:
        if plan.deployment == "demo-a":
            raise error
        return run(plan, *arguments, **options)

    return run_of


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "code"), [(OrtdeployError("no room"), 1), (OSError(28, "No space left"), 1), (ValueError("oh"), 3)]
)
def test_what_ends_one_manifest_ends_no_other_and_is_told(
    two: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    with (two / "a/m.yaml").open("a") as file:
        file.write("on_end: {command: [sh, -c, 'cat >> told']}\n")
    monkeypatch.setattr(runner, "run_plan", only_b(error, run_plan))
    result = cli("apply", two / "a", two / "b")
    assert result.code == code
    assert str(error.args[-1]) in result.err
    assert (f"ortdeploy: {two}/a/m.yaml: " in result.err) == (code == 1)
    assert ("this is a bug" in result.err) == (code == 3)
    assert len(read_rows(two / "b/outbox/run")) == 20
    told = json.loads((two / "a/told").read_text())
    assert told["exit_code"] == 1
    assert error.args[-1] in told["refused"][0]


def test_a_signal_between_two_manifests_is_told(two: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopping(*arguments: Any, **options: Any) -> Any:
        results = run_plan(*arguments, **options)
        os.kill(os.getpid(), signal.SIGTERM)
        return results

    monkeypatch.setattr(runner, "run_plan", stopping)
    result = cli("apply", two / "a", two / "b")
    assert result.code == 143
    assert "a signal came before it began" in result.words
    assert not (two / "b/outbox").exists()


def test_the_worst_ending_gives_the_exit_code() -> None:
    order = [3, 130, 4, 64, 1, 5, 0]
    for some in itertools.combinations(order, 2):
        assert worst_of(some) == worst_of(reversed(some)) == some[0]
    assert worst_of([0, 143, 4]) == 143
    assert worst_of([]) == 0
