"""The table that ends a run on a terminal."""

import pytest

from ortdeploy.results.results import JobResult, Status
from ortdeploy.views.summary_table import render_table

RESULTS = [
    JobResult(job="read", status=Status.DONE, output="outbox/read", committed=12_345, failed=2, skipped=1, seconds=4.0),
    JobResult(job="idle", status=Status.NOTHING_TO_DO, output="outbox/idle", committed=7),
    JobResult(job="bad", status=Status.FAILED, output="outbox/bad", kept=3, reason="the disk\x1b[2J is full"),
]


def test_each_job_has_a_row_and_what_went_wrong_its_reason() -> None:
    lines = render_table(RESULTS, color=False, width=110).splitlines()
    assert [line.split()[0] for line in lines] == ["job", "read", "idle", "bad", "bad:"]
    assert lines[1].split() == ["read", "done", "12,345", "2", "1", "4.0", "s", "3,086", "outbox/read"]
    assert lines[2].split()[:4] == ["idle", "nothing", "to", "do"]
    assert lines[0].split() == ["job", "state", "rows", "kept", "failed", "skipped", "time", "rows/s", "output"]
    assert lines[3].split() == ["bad", "failed", "0", "3", "0", "0", "outbox/bad"]
    assert lines[4] == "bad: the disk\ufffd[2J is full"


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_every_width_shows_jobs_and_states(width: int) -> None:
    text = render_table(RESULTS[:2], color=False, width=width)
    assert all(len(line) <= width for line in text.splitlines())
    assert "read" in text
    assert "done" in text
    assert ("rows/s" in text) == (width >= 80)


LONG = [
    JobResult(
        job="nightly-embeddings", status=Status.DONE, output="outbox/embeddings/of/every/page/of/the/archive",
        committed=1_234_567, failed=17, skipped=1_000, seconds=1234.5,
    ),
    JobResult(
        job="thirty-letters-in-this-job-name", status=Status.NOTHING_TO_DO, output="outbox/x", committed=900, kept=900
    ),
]  # fmt: skip


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
def test_no_width_cuts_a_number_or_a_state(width: int) -> None:
    lines = render_table(LONG, color=False, width=width).splitlines()
    shown = lines[0].split()
    whole = {
        "state": ("done", "nothing to do"), "rows": ("1,234,567", "900"), "kept": ("900",), "failed": ("17", "0"),
        "skipped": ("1,000",), "time": ("1,234.5 s",), "rows/s": ("1,000",),
    }  # fmt: skip
    assert all(len(line.rstrip()) <= width for line in lines)
    assert shown[:3] == ["job", "state", "rows"]
    for name in shown[1:]:
        assert all(any(value in line for line in lines) for value in whole.get(name, ()))


@pytest.mark.parametrize("width", [40, 80, 200])
def test_names_and_outputs_are_folded_and_not_cut(width: int) -> None:
    lines = render_table(LONG, color=False, width=width).splitlines()
    first = "".join(line[: lines[0].index("state")].strip() for line in lines[1:])
    assert first == "nightly-embeddingsthirty-letters-in-this-job-name"
    if "output" in lines[0]:
        begin = lines[0].index("output")
        assert "".join(line[begin:].strip() for line in lines[1:]) == LONG[0].output + LONG[1].output


def test_a_reason_is_wrapped() -> None:
    bad = JobResult(job="bad", status=Status.FAILED, output="outbox/bad", reason="the disk is full " * 5)
    lines = render_table([bad], color=False, width=40).splitlines()
    assert all(len(line.rstrip()) <= 40 for line in lines)
    assert lines[2].startswith("bad: the disk is full the disk")
    assert lines[3].startswith("  ")


def test_colors_are_only_where_they_are_wanted() -> None:
    assert "\x1b[" not in render_table(RESULTS, color=False, width=100)
    assert "\x1b[32mdone" in render_table(RESULTS, color=True, width=100)


def test_without_results_there_is_no_table() -> None:
    assert render_table([], color=True, width=80) == ""
