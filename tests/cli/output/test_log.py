"""What a terminal shows of events, and what is kept of the others."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ortdeploy.cli.output.log import FOLDER, KeptLog, configure_logging
from ortdeploy.events import log


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with log.sent_to(lambda *_: None):
        yield Terminal()


def test_a_terminal_shows_warnings_and_a_file_keeps_everything(terminal: Terminal, tmp_path: Path) -> None:
    kept = KeptLog()
    configure_logging(form=None, stream=terminal, level="info", color=False, kept=kept)
    log.info("run.started", manifest="m.yaml")
    kept.keep_in(tmp_path)
    log.warning("row.failed", row=3)
    kept.close()
    assert "row.failed" in terminal.getvalue()
    assert "run.started" not in terminal.getvalue()
    (path,) = (tmp_path / FOLDER).iterdir()
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["run.started", "row.failed"]


def test_of_many_files_the_oldest_go(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    for number in range(60):
        (tmp_path / FOLDER / f"20200101T0000{number:02}-1.jsonl").write_text("")
    kept = KeptLog()
    kept.keep_in(tmp_path)
    kept.close()
    names = sorted(path.name for path in (tmp_path / FOLDER).iterdir())
    assert (len(names), names[0]) == (50, "20200101T000011-1.jsonl")


def test_no_run_ends_for_its_log(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("a file where the folder should be")
    kept = KeptLog()
    configure_logging(form=None, stream=terminal, level="info", color=False, kept=kept)
    kept.keep_in(tmp_path)
    log.info("run.started", manifest="m.yaml")
    kept.close()
    assert terminal.getvalue() == ""
