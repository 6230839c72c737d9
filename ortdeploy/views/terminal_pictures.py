"""Shows PNG files on a terminal: by the terminal's own protocol, or as half blocks, which show two pixels each."""

import base64
import io
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TextIO

from ortdeploy.files.opening import read_whole

_KITTY_TERMS = ("xterm-kitty", "xterm-ghostty")
_KITTY_PROGRAMS = ("ghostty",)
_ITERM_PROGRAMS = ("iTerm.app", "WezTerm")
_MULTIPLEXERS = ("screen", "tmux")
_TRUE = ("truecolor", "24bit")
_PIECE = 4096  # signs of base64 that kitty takes at once
_WIDEST, _TALLEST = 64, 24  # columns and lines
_HALF = "▀"
_CUBE = (0, 95, 135, 175, 215, 255)
"""Levels of a color in the palette of 256 colors; its first sixteen depend on the user's settings."""

_CUBE_BEGINS = 16


def protocol_of(stream: TextIO, environ: Mapping[str, str]) -> str | None:
    """Return how a stream shows pictures: kitty, iterm, truecolor or palette; None if it cannot.

    tmux and screen do not pass a protocol on, so pictures are half blocks there.
    """
    term, program = environ.get("TERM", ""), environ.get("TERM_PROGRAM", "")
    if not stream.isatty() or term in {"", "dumb", "linux"}:
        return None
    if "TMUX" not in environ and not term.startswith(_MULTIPLEXERS):
        if "KITTY_WINDOW_ID" in environ or term in _KITTY_TERMS or program in _KITTY_PROGRAMS:
            return "kitty"
        if program in _ITERM_PROGRAMS or environ.get("LC_TERMINAL") == "iTerm2":
            return "iterm"
    if "utf" not in (stream.encoding or "").lower():
        return None
    if environ.get("COLORTERM") in _TRUE:
        return "truecolor"
    return "palette" if "256color" in term else None


def render_picture(path: Path, protocol: str, columns: int) -> str:
    """Return the text that shows a PNG file in at most `columns` columns. Raises OSError if the file cannot be read."""
    wide = min(columns, _WIDEST)
    if protocol == "kitty":
        return "".join(_kitty(read_whole(path), wide)) + "\n"
    if protocol == "iterm":
        data = base64.b64encode(read_whole(path)).decode()
        return f"\x1b]1337;File=inline=1;width={wide};preserveAspectRatio=1:{data}\a\n"
    return "".join(_blocks(read_whole(path), wide, true=protocol == "truecolor"))


def terminal_columns() -> int:
    """Return the width of the terminal in columns; 80 if it is unknown."""
    try:
        return os.get_terminal_size().columns or 80
    except OSError:
        return 80


def _kitty(png: bytes, wide: int) -> Iterator[str]:
    data = base64.b64encode(png).decode()
    pieces = [data[start : start + _PIECE] for start in range(0, len(data), _PIECE)]
    for place, piece in enumerate(pieces):
        control = f"a=T,f=100,c={wide}," if place == 0 else ""
        yield f"\x1b_G{control}m={int(place < len(pieces) - 1)};{piece}\x1b\\"


def _blocks(png: bytes, wide: int, *, true: bool) -> Iterator[str]:
    """Yield lines of half blocks: the foreground is the upper pixel, the background the lower one."""
    from PIL import Image  # noqa: PLC0415  an extra, which drew the picture

    with Image.open(io.BytesIO(png)) as opened:
        image = opened.convert("RGB")
    scale = min(wide / image.width, 2 * _TALLEST / image.height)
    width, lines = max(1, round(image.width * scale)), max(1, round(image.height * scale / 2))
    pixels = image.resize((width, 2 * lines)).tobytes()
    rows = [[_color(pixels[3 * (row * width + x) :][:3], true=true) for x in range(width)] for row in range(2 * lines)]
    for upper, lower in zip(rows[::2], rows[1::2], strict=True):
        signs = (f"\x1b[38;{front};48;{ground}m{_HALF}" for front, ground in zip(upper, lower, strict=True))
        yield f"{''.join(signs)}\x1b[0m\n"


def _color(pixel: bytes, *, true: bool) -> str:
    """Return the escape code's part for a color: the color itself, or the nearest one of the palette."""
    if true:
        return f"2;{pixel[0]};{pixel[1]};{pixel[2]}"
    red, green, blue = (min(range(6), key=lambda place: abs(_CUBE[place] - value)) for value in pixel)
    return f"5;{_CUBE_BEGINS + 36 * red + 6 * green + blue}"
