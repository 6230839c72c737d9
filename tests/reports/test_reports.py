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
from msgspec.structs import replace
from support.fakes import FakeRuntime, refuse_negative
from support.jobs import execute, plan_for, save
from support.jobs import report as read_report

from ortdeploy.files import names
from ortdeploy.plan.steps import RunJob
from ortdeploy.process import memory
from ortdeploy.reports.catalogue import REPORTS
from ortdeploy.reports.charts import duration, durations_within, number, ticks
from ortdeploy.reports.comparison import render as render_two
from ortdeploy.reports.html import latencies, placement, rates
from ortdeploy.reports.illustrations import Example, FailedRows, Illustrations, Picture
from ortdeploy.schemas import schema_text

SCRIPT = """(() => {
  const box = document.querySelector("input[type=search]");
  box.value = "ROW 5 refused";
  box.dispatchEvent(new Event("input"));
  return JSON.stringify({
    titles: [...document.querySelectorAll("h2")].map(one => one.textContent),
    drawn: [...document.querySelectorAll("svg")].map(one => one.getBoundingClientRect().height > 20),
    bars: [...document.querySelectorAll("rect.bar")].filter(one => one.getBoundingClientRect().width > 0).length,
    line: document.querySelector("polyline").getTotalLength() > 0,
    outside: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    found: [...document.querySelectorAll("section tbody tr")].filter(one => one.textContent.includes("run-refused"))
      .map(one => !one.hidden),
    said: document.querySelector("output").textContent,
    picture: document.querySelector("svg.picture image").getBoundingClientRect().width > 20,
    text: document.body.innerText,
  });
})()"""
PICTURE = Picture(
    url="data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
    width=40, height=20, outlines=(((2, 2), (8, 2), (8, 9), (2, 9)),), labels=("<seven>",),
)  # fmt: skip
EXAMPLES = (
    Example(name="inbox/<b>.png", values={"digit": "7"}, picture=PICTURE),
    Example(name="a.wav", values={"text": "hello"}, envelope=((-0.5, 0.4), (-1, 0.9)), seconds=2.5),
)
FAILED = tuple(
    {
        "row": row,
        "source": f"data.npy row {row}",
        "stage": "run",
        "code": "run-refused",
        "message": "no <b>",
        "attempts": 1,
    }
    for row in range(20)
)
SHOWN = Illustrations(failed=FAILED, failed_rows=25, examples=EXAMPLES)


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
    assert {name: form.FILE for name, form in REPORTS.items()} == names.REPORTS


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in {"input", "meta"}:
            self.open.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in {"src", "href"}]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in {"src", "href"}]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_else(report: dict[str, Any]) -> None:
    page = REPORTS["html"].render(report, SHOWN)
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert all(address.startswith("data:") for address in tags.addresses)
    assert page.count("<script") == 1
    assert "default-src 'none'" in page
    assert "url(" not in page
    assert not any(text in page for text in ("<b>name</b>", "<seven>", "inbox/<b>", "no <b>"))


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
    assert all(0 < taken["resident_bytes"] <= taken["peak_bytes"] + some_pages for taken in by_stage.values())
    assert 0 < by_stage["last_rows"]["proportional_bytes"] <= by_stage["last_rows"]["peak_bytes"] + some_pages


def test_a_page_of_a_run_that_has_measured_nothing_is_whole(report: dict[str, Any]) -> None:
    empty = copy.deepcopy(report)
    empty |= {"timeline": [], "failures": {}, "ended": None, "reason": "the <disk> is full", "peak_memory_bytes": None}
    empty |= {"session_run_share": None, "seconds_of_all_runs": 0, "status": "failed"}
    empty["session_run"] |= {"buckets": [], "p50": None, "p90": None, "p99": None, "p99.9": None}
    page = REPORTS["html"].render(empty, Illustrations())
    assert "the &lt;disk&gt; is full" in page
    Tags().feed(page)
    assert "quantile" not in REPORTS["prometheus"].render(empty, SHOWN)


@pytest.mark.skipif(
    not (importlib.util.find_spec("PyQt6") and importlib.util.find_spec("PyQt6.QtWebEngineWidgets")),
    reason="PyQt6-WebEngine is not installed",
)
@pytest.mark.parametrize("width", [390, 800, 1400])
def test_a_browser_shows_the_page_and_asks_for_nothing(report: dict[str, Any], width: int, tmp_path: Path) -> None:
    (tmp_path / "_run.html").write_text(REPORTS["html"].render(report, SHOWN), encoding="utf-8")
    browser = Path(__file__).parents[1] / "support/browser.py"
    command = [sys.executable, str(browser), str(tmp_path / "_run.html"), SCRIPT, str(width)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout
    requests, _, shown = answer.partition(" ")
    found = json.loads(shown)
    assert requests == "1"  # the page itself
    assert found["titles"] == [
        "Throughput over time", "Durations of session.run", "Time by stage; stages overlap", "Memory of the process",
        "Nodes by provider", "Failed rows", "Rows and their results", "Sessions", "Parts", "Made from",
    ]  # fmt: skip
    assert all(found["drawn"])
    assert len(found["drawn"]) >= 4
    assert found["line"]
    assert found["bars"]
    assert found["outside"] <= 0
    assert found["found"] == [row in {5, 15} for row in range(20)]  # the policy lets the page's own script run
    assert found["said"] == "2 of 20"
    assert found["picture"]
    assert 'a "quoted" <b>name</b> / run' in found["text"]
    assert "And 5 more, in _failed.jsonl." in found["text"]
    assert "180\ncommitted" in found["text"]


SAMPLE = re.compile(r'[a-z_]+\{([a-z_]+="(\\.|[^"\\\n])*",?)+\} -?[0-9.e+-]+\Z')


def test_the_metrics_are_prometheus_text(report: dict[str, Any]) -> None:
    text = REPORTS["prometheus"].render(report, SHOWN)
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


@pytest.mark.parametrize(
    ("status", "up"), [("done", 1), ("running", 1), ("paused", 1), ("failed", 0), ("interrupted", 0)]
)
def test_a_job_is_down_only_after_a_failure_or_an_interruption(report: dict[str, Any], status: str, up: int) -> None:
    text = REPORTS["prometheus"].render({**report, "status": status}, SHOWN)
    assert re.search(rf"^ortdeploy_job_up{{.*}} {up}$", text, re.MULTILINE)


def test_metrics_tell_what_the_machine_tells(report: dict[str, Any]) -> None:
    render = REPORTS["prometheus"].render
    told = copy.deepcopy(report)
    device = {"device": "0 Card", "memory_used_bytes": 300, "celsius": 40}
    heat = {"celsius": 70.5, "sensor": "soc"}
    told["machine"] = {"temperature": heat, "energy_joules": {"package-0": 2.5}, "devices": [device]}
    lines = [
        line for line in render(told, SHOWN).splitlines() if "energy" in line or "celsius" in line or "device" in line
    ]
    values = {line.partition(",job=")[2].partition(",")[2].rstrip(): None for line in lines if not line.startswith("#")}
    assert list(values) == [
        'meter="package-0"} 2.5',
        'sensor="soc"} 70.5',
        'sensor="0 Card"} 40',
        'device="0 Card"} 300',
    ]
    assert sum(line.startswith("# TYPE") for line in lines) == 3
    del told["machine"]  # as of an older ortdeploy
    assert "joules" not in render(told, SHOWN)


def test_a_page_stays_small(report: dict[str, Any]) -> None:
    """The largest course, and as much as a page takes of failed rows, examples and parts."""
    large, failed = copy.deepcopy(report), FailedRows()
    for row in range(5_000):
        failed.note(
            {"row": row, "source": "<&>" * 200, "stage": "run", "code": "c", "message": "<" * 500, "attempts": 1}
        )
    large["samples"] = [[second * 1000.125, second * 98765, 2**33 + second] for second in range(240)]
    large["timeline"] = [[second * 1000.125, second * 98765] for second in range(240)]
    large["events"] = [[second, "near the memory limit: smaller batches"] for second in range(60)]
    large["parts"] = report["parts"] * 1000
    url = "data:image/jpeg;base64," + "A" * 20_000
    example = Example(name="x", values={str(at): "y" * 160 for at in range(12)}, picture=replace(PICTURE, url=url))
    shown = Illustrations(failed=tuple(failed.first), failed_rows=failed.count, examples=(example,) * 12)
    page = REPORTS["html"].render(large, shown)
    assert failed.count == 5_000
    assert len(page.encode()) < 500_000


def test_rates_are_those_between_samples_or_commits() -> None:
    known = {"samples": [[1.0, 10, None], [2.0, 40, 5], [2.0, 45, 5]], "timeline": [[2.0, 45]]}
    assert rates(known) == [(1.0, 10.0), (2.0, 30.0)]
    assert rates({"timeline": [[2.0, 40], [4.0, 20]]}) == [(2.0, 20.0), (4.0, 0.0)]  # an older report; rows withdrawn
    many = {"samples": [[float(second), 5 * second, 1] for second in range(1, 241)], "timeline": []}
    assert len(rates(many)) == 120
    assert {rate for _, rate in rates(many)} == {5.0}


def test_axes_have_round_ticks() -> None:
    assert ticks(0.0) == [0.0, 0.5, 1.0]
    assert ticks(7.3) == [0.0, 2.0, 4.0, 6.0, 8.0]
    assert ticks(100.0) == [0.0, 25.0, 50.0, 75.0, 100.0]
    assert ticks(12_345.0)[-1] == 15_000.0
    for value in (0.0123, 1.0, 1.01, 99.9, 123_456.0):
        found = ticks(value)
        assert 3 <= len(found) <= 5
        assert found[-2] < value <= found[-1] * (1 + 1e-9)
    assert durations_within(0.0009, 0.006) == pytest.approx([0.001, 0.002, 0.005])
    assert durations_within(0.001, 100.0) == pytest.approx([0.001, 0.01, 0.1, 1.0, 10.0, 100.0])
    assert len(durations_within(1e-7, 1e5)) <= 6
    assert durations_within(0.0011, 0.0015) == [0.0011, 0.0015]


def test_numbers_have_four_significant_digits() -> None:
    assert [number(one) for one in (0, 0.25, 12.3456, 123.456, 1234.56, 1_234_567)] == [
        "0",
        "0.25",
        "12.35",
        "123.5",
        "1,235",
        "1,235,000",
    ]
    assert [duration(one) for one in (0, 0.00123456, 59.99, 1234.5, 7200)] == [
        "0 s",
        "1.235 ms",
        "59.99 s",
        "1,234 s",
        "2 h",
    ]


def test_percentiles_are_shown_where_there_are_runs_enough() -> None:
    run = {"p50": 0.001, "p90": 0.002, "p99": 0.003, "p99.9": 0.004}
    few, more = (latencies({**run, "buckets": [[0.001, count], [0.002, 1]]}) for count in (5, 200))
    assert "p50" in few
    assert "p90" not in few
    assert "p99 " in more
    assert "p99.9" not in more


def test_nodes_are_a_bar_of_each_model(report: dict[str, Any]) -> None:
    drawn = placement({**report, "components": {}, "placement": {"CPUExecutionProvider": 3, "QNNExecutionProvider": 9}})
    assert drawn.count('class="shares"') == 1
    assert "QNNExecutionProvider 75%, 9 nodes" in drawn
    several = {name: {"placement": {"CPUExecutionProvider": 1}} for name in ("unet", "vae")}
    drawn = placement({**report, "components": several})
    assert drawn.count('class="shares"') == 2
    assert "<h3>vae</h3>" in drawn


def test_two_reports_have_the_same_axes(report: dict[str, Any]) -> None:
    end = report["seconds_of_all_runs"]
    sampled = [[end * share, round(200 * share), 50 * 2**20] for share in (0.25, 0.5, 0.75, 1)]
    report = {**report, "samples": sampled}  # a job as short as this may have none
    slower = copy.deepcopy(report)
    slower["seconds_of_all_runs"] = report["seconds_of_all_runs"] * 4
    slower["failures"] = {}
    page = render_two((report, slower), ("a <1>.json", "b.json"), [("rows.failed", "1", "<2>")] * 500)
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.addresses == []
    assert '<span class="down">-75.0%</span>' in page  # rows a second
    assert '<span class="down">+300.0%</span>' in page  # time
    assert "a &lt;1&gt;.json" in page
    assert "And 100 more" in page
    axes = re.findall(r'<div class="x">(.*?)</div></figure>', page)
    assert len(axes) == 6
    assert all(axes.count(one) % 2 == 0 for one in axes)
