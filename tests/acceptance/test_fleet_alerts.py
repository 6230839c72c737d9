"""The alert rules and the dashboard in deployments/fleet ask for metrics that a device writes."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import REPOSITORY

from ortdeploy.fleet.metrics import HELP

FOLDER = REPOSITORY / "deployments/fleet"
OTHERS = {"node_time_seconds"}
"""Metrics of node_exporter itself."""
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool (Debian's package prometheus) is not installed")


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((FOLDER / "alerts.yaml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
    return found


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in rules())
    yield from (target["expr"] for panel in panels() for target in panel["targets"])


def test_every_metric_that_is_asked_for_is_written() -> None:
    named = {name for one in expressions() for name in re.findall(r"\b(?:ortdeploy|node)_\w+", one)}
    assert named - OTHERS <= set(HELP)
    assert named > OTHERS


def test_every_alert_is_tested_and_says_what_to_do() -> None:
    document = yaml.safe_load((FOLDER / "alerts_test.yaml").read_text())
    tests = [one for group in document["tests"] for one in group["alert_rule_test"]]
    for rule in rules():
        own = [bool(one.get("exp_alerts")) for one in tests if one["alertname"] == rule["alert"]]
        assert {True, False} == set(own), f"{rule['alert']} is tested where it fires and where it does not"
        assert {"summary", "description"} == set(rule["annotations"])


def test_panels_have_places_of_their_own() -> None:
    places = [
        (x, y)
        for one in panels()
        for x in range(one["gridPos"]["x"], one["gridPos"]["x"] + one["gridPos"]["w"])
        for y in range(one["gridPos"]["y"], one["gridPos"]["y"] + one["gridPos"]["h"])
    ]
    assert len(places) == len(set(places))
    assert len({one["id"] for one in panels()}) == len(panels())


@needs_promtool
@pytest.mark.process
def test_alerts_fire_as_their_tests_say() -> None:
    for arguments in (["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]):
        done = subprocess.run([str(PROMTOOL), *arguments], cwd=FOLDER, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
@pytest.mark.process
def test_prometheus_parses_what_the_dashboard_asks(tmp_path: Path) -> None:
    asked = [one.replace("$deployment", ".*").replace("$instance", ".*") for one in expressions()]
    recorded = [{"record": f"asked:{number}", "expr": one} for number, one in enumerate(asked)]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}))
    done = subprocess.run(
        [str(PROMTOOL), "check", "rules", tmp_path / "rules.yaml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
@pytest.mark.process
def test_prometheus_reads_the_metrics_of_a_device() -> None:
    from support.fleet import CURRENT  # noqa: PLC0415

    from ortdeploy.fleet.metrics import render_metrics  # noqa: PLC0415

    done = subprocess.run(
        [str(PROMTOOL), "check", "metrics"],
        input=render_metrics(CURRENT, "k"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
