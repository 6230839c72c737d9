"""The table that ends a run on a terminal."""

import pytest

from ortdeploy.results.results import JobResult, Status
from ortdeploy.views.closing_table import render_table

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
    assert "0 (+3 kept)" in lines[3]
    assert lines[4] == "bad: the disk\ufffd[2J is full"


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_every_width_shows_jobs_and_states(width: int) -> None:
    text = render_table(RESULTS[:2], color=False, width=width)
    assert all(len(line) <= width for line in text.splitlines())
    assert "read" in text
    assert "done" in text
    assert ("rows/s" in text) == (width >= 80)


def test_colors_are_only_where_they_are_wanted() -> None:
    assert "\x1b[" not in render_table(RESULTS, color=False, width=100)
    assert "\x1b[32mdone" in render_table(RESULTS, color=True, width=100)


def test_without_results_there_is_no_table() -> None:
    assert render_table([], color=True) == ""
