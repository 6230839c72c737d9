"""Progress as log lines, as a bar, as nothing."""

import io

import pytest
from structlog.testing import capture_logs

from ortdeploy.views.progress import AboveBar, Bar, LogLines, Silent


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_log_lines_come_every_ten_seconds_with_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("ortdeploy.durations.time.monotonic", clock)
    lines = LogLines()
    with capture_logs() as events:
        lines.job_started("read", 100, 1100)
        for second in range(1, 26):
            clock.now = float(second)
            lines.rows_done(100 + second * 20, 3)
        lines.job_ended()
    assert [(event["event"], event["done"], event["failed"]) for event in events] == [
        ("job.progressed", 300, 3), ("job.progressed", 500, 3),
    ]  # fmt: skip
    assert (events[1]["rows_per_second"], events[1]["seconds_left"], events[1]["total"]) == (20, 30, 1100)


def test_an_unknown_number_of_rows_has_no_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("ortdeploy.durations.time.monotonic", clock)
    lines = LogLines()
    with capture_logs() as events:
        lines.job_started("read", 0, None)
        clock.now = 10.0
        lines.rows_done(50, 0)
    assert events[0]["seconds_left"] is None


def test_a_bar_counts_failures_and_lets_log_lines_stand_above_it() -> None:
    terminal = io.StringIO()
    bar = Bar(terminal)
    bar.job_ended()
    bar.job_started("read", 5, 10)
    AboveBar(terminal).write("a log line\n")
    bar.rows_done(10, 2)
    bar.job_ended()
    shown = terminal.getvalue()
    assert "a log line\n" in shown
    assert "10/10" in shown
    assert "failed=2" in shown


def test_quiet_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    silent = Silent()
    silent.job_started("read", 0, 1)
    silent.rows_done(1, 0)
    silent.job_ended()
    assert capsys.readouterr() == ("", "")
