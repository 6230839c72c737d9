"""The word that a terminal shows while a command works and has shown nothing yet."""

import os
import signal
from collections.abc import Iterator
from typing import TextIO

import pytest

from ortdeploy.views.live_line import AboveLine, Notice

pty = pytest.importorskip("pty")  # Windows has none

ERASED = b"\r\x1b[K"


def shows(terminal: int, text: bytes) -> bool:
    """Return whether this comes next on a terminal, which hands on what is written in pieces."""
    found = b""
    while len(found) < len(text):
        found += os.read(terminal, len(text) - len(found))
    return found == text


@pytest.fixture
def terminal() -> Iterator[tuple[int, TextIO]]:
    shown, typed = pty.openpty()
    with os.fdopen(typed, "w", encoding="utf-8") as stream:
        yield shown, stream
    os.close(shown)


def test_it_is_shown_when_the_time_is_up_and_erased_at_the_end(terminal: tuple[int, TextIO]) -> None:
    shown, stream = terminal
    before = signal.getsignal(signal.SIGALRM)
    with Notice(stream, "planning"):
        signal.raise_signal(signal.SIGALRM)
        assert shows(shown, b"planning")
    assert shows(shown, ERASED)
    assert signal.getsignal(signal.SIGALRM) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_what_ends_in_time_shows_nothing(terminal: tuple[int, TextIO]) -> None:
    shown, stream = terminal
    with Notice(stream, "planning"):
        pass
    stream.write("the plan")
    stream.flush()
    assert shows(shown, b"the plan")


def test_a_log_line_takes_its_place(terminal: tuple[int, TextIO]) -> None:
    shown, stream = terminal
    with Notice(stream, "planning"):
        signal.raise_signal(signal.SIGALRM)
        above = AboveLine(stream)
        above.write("a warning")
        above.flush()
        assert shows(shown, b"planning" + ERASED + b"a warning")
