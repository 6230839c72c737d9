"""Progress as log lines, as a bar, as nothing."""

import io

import pytest
from support.logs import capture_logs

from ortdeploy.views.progress import AboveLine, LiveLine, LogLines, Silent


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


def test_a_line_counts_failures_and_lets_log_lines_stand_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("ortdeploy.views.progress.time.monotonic", clock)
    monkeypatch.setenv("COLUMNS", "120")
    terminal = io.StringIO()
    line = LiveLine(terminal, color=False)
    line.job_ended()
    line.job_started("read", 5, 10)
    AboveLine(terminal).write("a log line\n")
    clock.now = 2.5
    line.rows_done(10, 2)
    line.job_ended()
    AboveLine(terminal).write("a line after it\n")
    shown = terminal.getvalue()
    for words in ("a log line\n", "10 of 10 rows", "2 rows/s", "2 failed", "a line after it\n"):
        assert words in shown


def test_a_line_of_unknown_length_shows_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("ortdeploy.views.progress.time.monotonic", clock)
    terminal = io.StringIO()
    line = LiveLine(terminal, color=False)
    line.job_started("read", 0, None)
    clock.now = 2.0
    line.rows_done(1234, 0)
    line.job_ended()
    assert "1,234 rows" in terminal.getvalue()
    assert "%" not in terminal.getvalue()


def test_quiet_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    silent = Silent()
    silent.job_started("read", 0, 1)
    silent.rows_done(1, 0)
    silent.job_ended()
    assert capsys.readouterr() == ("", "")
