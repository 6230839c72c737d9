"""`ortdeploy tune`: a real job is tried, and the overlay is what apply runs with."""

from pathlib import Path

import pytest
from conftest import Cli

from ortdeploy.process.child import ask


def test_a_trial_of_a_real_job_tells_its_speed(deployment: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("trial")
    (folder / "overlay.yaml").write_text("{}\n")
    request = {
        "manifest": str(deployment / "m.yaml"), "folder": str(folder), "job": "run", "seconds": 0.0, "profile": None,
        "sets": [], "roots": [], "overlays": [],
    }  # fmt: skip
    answer = ask("ortdeploy.cli.children.tune", request)
    assert answer.code == 0, answer.printed
    (told,) = answer.messages
    assert told["rows_per_second"] > 0
    assert told["memory"] > 0
    assert told["rows"] == 20


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
