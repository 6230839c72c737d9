"""`ortdeploy tune`: a real job is tried, and the overlay is what apply runs with."""

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli
from support.forks import children_as_forks

from ortdeploy.cli.commands import tune
from ortdeploy.process.child import Answer, ask

LONG = 30.0
"""Seconds after which a trial that does not end is ended."""


def trial(deployment: Path, folder: Path, *sets: str, measures: bool = False) -> Any:
    """Return what a trial of a moment says; `measures`: in a new Python, which tells the memory of the trial alone."""
    (folder / "overlay.yaml").write_text("{}\n")
    request = {
        "manifest": str(deployment / "m.yaml"), "folder": str(folder), "job": "run", "seconds": 0.0, "profile": None,
        "sets": sets, "roots": [], "overlays": [],
    }  # fmt: skip
    with nullcontext() if measures else children_as_forks():
        answer = ask("ortdeploy.cli.children.tune", request, seconds=LONG)
    assert answer.code == 0, answer.printed
    (told,) = answer.messages
    return told


@pytest.mark.slow
def test_a_trial_of_a_real_job_tells_its_speed_at_any_hour(
    deployment: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    now = datetime.now(UTC)
    begin, end = now + timedelta(hours=2), now + timedelta(hours=3)
    hours = f'{{from: "{begin:%H:%M}", to: "{end:%H:%M}", zone: UTC}}'
    told = trial(
        deployment, tmp_path_factory.mktemp("trial"), f"jobs.run.hours={hours}", "jobs.run.until=1ms", measures=True
    )
    assert told["rows_per_second"] > 0
    assert told["memory"] > 0
    assert told["rows"] == 20


def test_a_trial_of_a_job_without_rows_ends_and_says_so(
    deployment: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    np.save(deployment / "data.npy", np.zeros((0, 4), np.float32))
    told = trial(deployment, tmp_path_factory.mktemp("trial"))
    assert "the input holds no row" in told["refused"]


def test_a_trial_that_must_pause_says_why(deployment: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    told = trial(deployment, tmp_path_factory.mktemp("trial"), "jobs.run.pause={below: {free_disk: 9999999GiB}}")
    assert "free disk" in told["refused"]


def test_the_last_words_of_a_trial_that_ended_its_process_are_told(
    deployment: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed = Answer(messages=[], code=1, late=False, printed="Traceback: …\nZeroDivisionError: division by zero\n")
    monkeypatch.setattr(tune, "ask", lambda *_: crashed)
    trials = cli("tune", deployment, "--job", "run", "--format", "json").json["trials"]
    words = 'the process that ran it was ended with code 1. It printed: "ZeroDivisionError: division by zero"'
    assert {one["refused"] for one in trials} == {words}


@pytest.mark.slow
def test_a_real_job_is_tuned_and_applied_with_the_overlay(deployment: Path, cli: Cli) -> None:
    tuned = cli(
        "tune",
        deployment,
        "--job",
        "run",
        "--seconds",
        "0.2",
        "--format",
        "json",
        "--report",
        deployment / "r.html",
    )
    assert tuned.code == 0, tuned.err
    trials = tuned.json["trials"]
    assert all(trial["refused"] is None and trial["rows_per_second"] > 0 and trial["memory"] > 0 for trial in trials)
    assert "<table>" in (deployment / "r.html").read_text()
    again = cli("tune", deployment, "--job", "run", "--seconds", "0.2")
    assert "written" in again.out
    assert not again.err, "what was tried before is not tried again"
    assert not (deployment / "outbox").exists()
    overlay = deployment / "overlays/o.yaml"
    overlay.parent.mkdir(exist_ok=True)
    overlay.write_text(
        "jobs: {run: {batch: {size: 5}}}\nmodels: {double: {sessions: [{name: cpu, providers: [CPU]}]}}\n"
    )
    planned = cli("plan", deployment, "--overlay", overlay, "--out", deployment / "plan.json")
    assert "batches of 5" in planned.out
    overlay.write_text("jobs: {run: {batch: {size: 6}}}\n")
    moved = cli("apply", deployment / "plan.json")
    assert moved.code == 1
    assert "manifest is not what the plan was made from" in " ".join((moved.out + moved.err).split())
    assert cli("apply", deployment, "--overlay", overlay).code == 0


@pytest.mark.parametrize("text", ["[1]", "a: [", ""])
def test_an_overlay_that_is_none_is_refused(deployment: Path, cli: Cli, text: str) -> None:
    (deployment / "o.txt").write_text(text)
    refused = cli("validate", deployment, "--overlay", deployment / "o.txt")
    assert refused.code == 1
    assert "o.txt" in refused.out


def test_an_overlays_mistake_is_shown_where_it_stands(deployment: Path, cli: Cli) -> None:
    (deployment / "o.txt").write_text("jobs:\n  run:\n    batch: {sice: 5}\n")
    refused = cli("validate", deployment, "--overlay", deployment / "o.txt")
    assert refused.code == 1
    assert "o.txt:3:13" in refused.out


@pytest.mark.parametrize("limit", ["memory=much", "p99=1", "speed=3"])
def test_a_limit_that_is_none_is_wrong_usage(deployment: Path, cli: Cli, limit: str) -> None:
    assert cli("tune", deployment, "--job", "run", "--limit", limit).code == 64


def test_a_job_that_is_not_there_is_wrong_usage(deployment: Path, cli: Cli) -> None:
    assert cli("tune", deployment, "--job", "runn").code == 64
