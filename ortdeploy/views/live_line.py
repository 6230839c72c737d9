"""One line at the bottom of a terminal that moves while a command works; log lines appear above it."""

import os
import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.views.panel import columns

if TYPE_CHECKING:
    from rich.text import Text

_REFRESHES = 4  # a second
_CUT = "..."  # as three signs, because a terminal without Unicode has no sign for it


class Piece(Struct, frozen=True, kw_only=True):
    """A part of the line. Those of the highest `rank` are dropped first if the terminal is too narrow; 0: never."""

    text: str
    rank: int = 0
    style: str = ""
    glue: str = " "
    """What stands between the piece before and this one."""


def fit(pieces: Iterable[Piece], width: int) -> list[Piece]:
    """Return the pieces that fit into `width` columns; if those that stay do not, the first one is cut."""
    kept = [piece for piece in pieces if piece.text]
    while _columns(kept) > width and (rank := max(piece.rank for piece in kept)):
        kept = [piece for piece in kept if piece.rank < rank]
    over = _columns(kept) - width
    if over > 0:
        kept[0] = _shortened(kept[0], max(columns(kept[0].text) - over, 1 + len(_CUT)))
    return kept


def _columns(pieces: Sequence[Piece]) -> int:
    return sum(columns(piece.text) + (columns(piece.glue) if at else 0) for at, piece in enumerate(pieces))


def _shortened(piece: Piece, room: int) -> Piece:
    text = piece.text
    while columns(text) + len(_CUT) > room:
        text = text[:-1]
    return replace(piece, text=text + _CUT)


class Line:
    """The line. It asks for its pieces at each refresh, and fits them to the width that the terminal has then."""

    def __init__(self, stream: TextIO, pieces: Callable[[bool], Iterable[Piece]], *, color: bool) -> None:
        """Show the line. `pieces` is told whether the terminal has ASCII alone."""
        from rich.console import Console  # noqa: PLC0415  only a terminal needs it
        from rich.live import Live  # noqa: PLC0415  as above

        self.stream, self._pieces, self._color = stream, pieces, color
        self.console = Console(file=stream, force_terminal=True, no_color=not color, highlight=False)
        self._live = Live(
            get_renderable=self._rendered,
            console=self.console,
            refresh_per_second=_REFRESHES,
            redirect_stdout=False,
            redirect_stderr=False,
            transient=True,
        )
        self._live.start(refresh=True)
        _open_lines.append(self)

    def _rendered(self) -> "Text":
        from rich.text import Text  # noqa: PLC0415  as above

        text = Text(no_wrap=True, overflow="crop")
        for at, piece in enumerate(fit(self._pieces(self.console.options.ascii_only), self.console.width)):
            text.append(piece.glue if at else "").append(piece.text, piece.style if self._color else "")
        return text

    def close(self) -> None:
        """Remove the line."""
        self._live.stop()
        _open_lines.remove(self)


class Notice:
    """A word on a terminal if a block takes longer than half a second; log lines and the block's end erase it.

    The alarm of the system calls it, so that it costs no thread. Where there is none (Windows), nothing is shown.
    """

    def __init__(self, stream: TextIO, word: str) -> None:
        self.stream, self._word, self._is_shown = stream, word, False

    def __enter__(self) -> None:
        """Begin to wait."""
        if hasattr(signal, "setitimer"):
            self._before = signal.signal(signal.SIGALRM, self._show)
            signal.setitimer(signal.ITIMER_REAL, _PATIENCE)
            _notices.append(self)

    def __exit__(self, *_: object) -> None:
        """Erase the word, and wait no longer."""
        if self in _notices:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before or signal.SIG_DFL)  # None: not set by Python
            self.erase()
            _notices.remove(self)

    def _show(self, *_: object) -> None:
        self._is_shown = True
        self._write(self._word)

    def erase(self) -> None:
        """Remove the word, if it is shown."""
        if self._is_shown:
            self._is_shown = False
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        """Write past the stream's buffer, which the code that the alarm has interrupted may be writing into."""
        with suppress(OSError):
            os.write(self.stream.fileno(), text.encode(self.stream.encoding, self.stream.errors or "replace"))


_PATIENCE = 0.5  # seconds
_open_lines: list[Line] = []
_notices: list[Notice] = []


class AboveLine:
    """A stream whose log lines appear above the live line of the same terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write above the live line, if this stream has one; a log file has none."""
        for notice in _notices:
            notice.erase()
        line = next((line for line in reversed(_open_lines) if line.stream is self._stream), None)
        if line is None:
            return self._stream.write(text)
        from rich.text import Text  # noqa: PLC0415  is loaded where a line is open

        line.console.print(Text.from_ansi(text), end="", soft_wrap=True)
        return len(text)

    def flush(self) -> None:
        """Flush the terminal."""
        self._stream.flush()

    def isatty(self) -> bool:
        """Return whether it is a terminal."""
        return self._stream.isatty()
