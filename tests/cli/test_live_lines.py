"""Who gets a live line: a terminal that can write over what it shows, unless -q is given."""

import argparse
import io

import pytest

from ortdeploy.cli.children.apply import choose_progress
from ortdeploy.cli.commands.shared import live_line
from ortdeploy.views.live_line import Piece
from ortdeploy.views.progress import LiveLine, LogLines, Silent


class Terminal(io.StringIO):
    """A stream that may be a terminal."""

    def __init__(self, *, is_one: bool = True) -> None:
        super().__init__()
        self._is_one = is_one

    def isatty(self) -> bool:
        return self._is_one


def asked(*, quiet: bool = False) -> argparse.Namespace:
    return argparse.Namespace(quiet=quiet, color="auto")


@pytest.mark.parametrize(
    ("term", "terminal", "quiet", "expected"),
    [
        ("xterm", True, False, LiveLine),
        ("dumb", True, False, LogLines),
        ("xterm", False, False, LogLines),
        ("xterm", True, True, Silent),
    ],
)
def test_only_a_terminal_that_can_move_gets_a_live_line(
    monkeypatch: pytest.MonkeyPatch, term: str, expected: type, *, terminal: bool, quiet: bool
) -> None:
    stream = Terminal(is_one=terminal)
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", term)
    assert isinstance(choose_progress(asked(quiet=quiet)), expected)
    with live_line(asked(quiet=quiet), lambda _: [Piece(text="tuning read")]):
        pass
    assert ("tuning read" in stream.getvalue()) == (expected is LiveLine)


def test_a_line_is_removed_if_the_work_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with pytest.raises(KeyboardInterrupt), live_line(asked(), lambda _: [Piece(text="tuning read")]):
        raise KeyboardInterrupt
    assert stream.getvalue().endswith("\x1b[2K")
