"""The page and the metrics of a report: complete, escaped, and looked at by who reads them."""

import copy
import importlib.util
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import count_shared_pages
from support.fakes import FakeRuntime, refuse_negative
from support.jobs import execute, plan_for, save
from support.jobs import report as read_report

from ortdeploy.plan.steps import RunJob
from ortdeploy.process import memory
from ortdeploy.running.reports.catalogue import REPORTS
from ortdeploy.schemas import schema_text

SCRIPT = """JSON.stringify({
  titles: [...document.querySelectorAll("h2")].map(one => one.textContent),
  drawn: [...document.querySelectorAll("svg")].map(one => one.getBoundingClientRect().height > 20),
  bars: [...document.querySelectorAll("rect")].filter(one => one.getBoundingClientRect().width > 0).length,
  line: document.querySelector("polyline").getTotalLength() > 0,
  outside: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  text: document.body.innerText,
})"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The report of a real run with failed rows, and a name that tries to be markup."""
    folder = tmp_path_factory.mktemp("report")
    save(folder, [-1.0 if row % 10 == 3 else float(row) for row in range(200)])
    plan = plan_for(folder, 200, max_failed=100, rows_per_part=20)
    assert isinstance(plan.steps[-1], RunJob)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "proportional_memory", count_shared_pages)
        execute(folder, plan, FakeRuntime(refuse_negative))
    found = read_report(folder)
    found["deployment"] = 'a "quoted" <b>name</b>'
    return found


def test_every_form_is_in_the_schema() -> None:
    choices = json.loads(schema_text("deployment"))["$defs"]["job"]["properties"]["report"]["anyOf"]
    assert choices[0]["enum"] == choices[1]["items"]["enum"] == list(REPORTS) == sorted(REPORTS)


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in {"src", "href"}]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in {"src", "href"}]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_else(report: dict[str, Any]) -> None:
    page = REPORTS["html"].render(report)
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.addresses == []
    assert "<script" not in page
    assert "url(" not in page
    assert "<b>name</b>" not in page


def test_stages_tell_processor_seconds_and_memory(report: dict[str, Any]) -> None:
    used = sum(stage["cpu_seconds"] for stage in report["stages"].values())
    process = report["process"]
    assert 0 < used <= process["cpu_seconds_user"] + process["cpu_seconds_system"] + 0.01
    assert report["stages"]["run"]["cpu_seconds"] > 0
    by_stage = report["memory"]["by_stage"]
    assert list(by_stage) == ["before_opening", "opened", "first_rows", "last_rows"]
    peaks = [taken["peak_bytes"] for taken in by_stage.values()]
    some_pages = 2**20  # Linux counts them by processor, and adds up now and then
    assert all(after >= before - some_pages for before, after in pairwise(peaks))
    assert all(0 < taken["proportional_bytes"] <= taken["peak_bytes"] + some_pages for taken in by_stage.values())


def test_a_page_of_a_run_that_has_measured_nothing_is_whole(report: dict[str, Any]) -> None:
    empty = copy.deepcopy(report)
    empty |= {"timeline": [], "failures": {}, "ended": None, "reason": "the <disk> is full", "peak_memory_bytes": None}
    empty |= {"session_run_share": None, "seconds_of_all_runs": 0, "status": "failed"}
    empty["session_run"] |= {"buckets": [], "p50": None, "p90": None, "p99": None, "p99.9": None}
    page = REPORTS["html"].render(empty)
    assert "the &lt;disk&gt; is full" in page
    Tags().feed(page)
    assert "quantile" not in REPORTS["prometheus"].render(empty)


@pytest.mark.skipif(
    not (importlib.util.find_spec("PyQt6") and importlib.util.find_spec("PyQt6.QtWebEngineWidgets")),
    reason="PyQt6-WebEngine is not installed",
)
def test_a_browser_shows_the_plots_and_asks_for_nothing(report: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "_run.html").write_text(REPORTS["html"].render(report), encoding="utf-8")
    browser = Path(__file__).parents[2] / "support/browser.py"
    command = [sys.executable, str(browser), str(tmp_path / "_run.html"), SCRIPT]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout
    requests, _, shown = answer.partition(" ")
    found = json.loads(shown)
    assert requests == "1"  # the page itself
    assert found["titles"] == [
        "Throughput over time, rows per second", "Durations of session.run", "Seconds by stage; stages overlap",
        "Processor seconds by stage", "Memory of the process, MiB: resident, and the peak up to then",
        "Failed rows by stage", "Sessions", "Made from",
    ]  # fmt: skip
    assert found["drawn"] == [True] * 6
    assert found["line"]
    assert found["bars"] > 5
    assert found["outside"] <= 0
    assert 'a "quoted" <b>name</b> / run' in found["text"]
    assert "run: run-refused" in found["text"]
    assert "180\ncommitted" in found["text"]


SAMPLE = re.compile(r'[a-z_]+\{([a-z_]+="(\\.|[^"\\\n])*",?)+\} -?[0-9.e+-]+\Z')


def test_the_metrics_are_prometheus_text(report: dict[str, Any]) -> None:
    text = REPORTS["prometheus"].render(report)
    assert text.endswith("\n")
    families: list[str] = []
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            families.append(line.split()[2])
        elif not line.startswith("# HELP "):
            assert SAMPLE.match(line), line
            assert line.startswith(families[-1])
    assert len(families) == len(set(families))
    assert 'state="failed"} 20' in text
    assert '\\"quoted\\"' in text
    assert np.isfinite([float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"]).all()


def test_metrics_tell_what_the_machine_tells(report: dict[str, Any]) -> None:
    render = REPORTS["prometheus"].render
    told = copy.deepcopy(report)
    device = {"device": "0 Card", "memory_used_bytes": 300, "celsius": 40}
    heat = {"celsius": 70.5, "sensor": "soc"}
    told["machine"] = {"temperature": heat, "energy_joules": {"package-0": 2.5}, "devices": [device]}
    lines = [line for line in render(told).splitlines() if "energy" in line or "celsius" in line or "device" in line]
    values = {line.partition(",job=")[2].partition(",")[2].rstrip(): None for line in lines if not line.startswith("#")}
    assert list(values) == [
        'meter="package-0"} 2.5',
        'sensor="soc"} 70.5',
        'sensor="0 Card"} 40',
        'device="0 Card"} 300',
    ]
    assert sum(line.startswith("# TYPE") for line in lines) == 3
    del told["machine"]  # as of an older ortdeploy
    assert "joules" not in render(told)
