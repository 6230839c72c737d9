"""Progress as log lines, as a bar, as nothing."""

import io

import pytest
from support.logs import capture_logs
from support.terminals import Clock, shown_of_job

from ortdeploy.views.live_line import AboveLine, Piece, fit
from ortdeploy.views.progress import LiveLine, LogLines, Silent


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


def test_a_log_file_gets_its_lines_beside_a_live_line() -> None:
    terminal, file = io.StringIO(), io.StringIO()
    line = LiveLine(terminal, color=False)
    line.job_started("read", 0, 10)
    AboveLine(file).write("a log line\n")
    line.job_ended()
    assert file.getvalue() == "a log line\n"
    assert "a log line" not in terminal.getvalue()


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (120, "read ━━━━┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈ 23% 234,567 of 1,000,000 rows 117,284 rows/s 0:07 left 17 failed 22 MiB"),
        (80, "read 23% 234,567 of 1,000,000 rows 117,284 rows/s 0:07 left 17 failed 22 MiB"),
        (60, "read 23% 234,567 rows 117,284 rows/s 0:07 left 17 failed"),
        (40, "read 23% 234,567 rows 17 failed"),
    ],
)
def test_a_narrow_line_shows_whole_words(width: int, shown: str) -> None:
    assert shown_of_job(width) == shown


def test_a_line_fits_a_terminal_that_becomes_narrow() -> None:
    assert shown_of_job(120, then=60) == "read 23% 234,567 rows 117,284 rows/s 0:07 left 17 failed"


def test_a_terminal_without_unicode_gets_a_bar_of_ascii() -> None:
    assert shown_of_job(120, encoding="ascii").startswith("read ####................ 23% 234,567 of")


def test_a_job_keeps_its_name_where_nothing_else_fits() -> None:
    pieces = [Piece(text="nightly-embeddings-of-all"), Piece(text="234,567 rows"), Piece(text="9 MiB", rank=1)]
    assert " ".join(piece.text for piece in fit(pieces, 30)) == "nightly-embedd... 234,567 rows"
    assert " ".join(piece.text for piece in fit(pieces, 38)) == "nightly-embeddings-of-all 234,567 rows"


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
