"""Pictures on a terminal: which protocol it gets, and what is written to it."""

import base64
import io
import re
from pathlib import Path

import pytest
from PIL import Image

from ortdeploy.views.terminal_pictures import protocol_of, render_picture


class Screen(io.StringIO):
    """A stream that may be a terminal."""

    encoding = "utf-8"

    def __init__(self, *, terminal: bool = True) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"TERM": "xterm-kitty"}, "kitty"),
        ({"TERM": "xterm-256color", "KITTY_WINDOW_ID": "1"}, "kitty"),
        ({"TERM": "xterm-ghostty", "TERM_PROGRAM": "ghostty"}, "kitty"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "iTerm.app"}, "iterm"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "WezTerm"}, "iterm"),
        ({"TERM": "xterm-256color", "LC_TERMINAL": "iTerm2"}, "iterm"),
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, "truecolor"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "Apple_Terminal"}, "palette"),
        ({"TERM": "screen-256color", "KITTY_WINDOW_ID": "1"}, "palette"),
        ({"TERM": "xterm-256color", "TMUX": "1", "TERM_PROGRAM": "iTerm.app", "COLORTERM": "24bit"}, "truecolor"),
        ({"TERM": "vt100"}, None),
        ({"TERM": "linux", "COLORTERM": "truecolor"}, None),
        ({"TERM": "dumb", "COLORTERM": "truecolor"}, None),
        ({"COLORTERM": "truecolor"}, None),
    ],
)
def test_a_terminal_gets_what_it_says_that_it_can(environ: dict[str, str], expected: str | None) -> None:
    assert protocol_of(Screen(), environ) == expected
    assert protocol_of(Screen(terminal=False), environ) is None


def test_a_terminal_that_cannot_write_blocks_gets_none() -> None:
    screen = Screen()
    screen.encoding = "ascii"
    assert protocol_of(screen, {"TERM": "xterm-256color", "COLORTERM": "truecolor"}) is None


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    """A picture of two columns and four rows: red over blue, twice."""
    made = Image.new("RGB", (2, 4), (255, 0, 0))
    made.paste((0, 0, 255), (0, 2, 2, 4))
    made.save(tmp_path / "p.png")
    return tmp_path / "p.png"


def test_half_blocks_have_the_upper_pixel_in_front(picture: Path) -> None:
    upper, lower = render_picture(picture, "truecolor", 2).splitlines()
    assert upper == "\x1b[38;2;255;0;0;48;2;255;0;0m▀" * 2 + "\x1b[0m"
    assert lower == "\x1b[38;2;0;0;255;48;2;0;0;255m▀" * 2 + "\x1b[0m"


def test_the_palette_gets_the_nearest_of_its_colors(picture: Path) -> None:
    upper, lower = render_picture(picture, "palette", 2).splitlines()
    assert upper.startswith("\x1b[38;5;196;48;5;196m▀")
    assert lower.startswith("\x1b[38;5;21;48;5;21m▀")


def test_blocks_stay_within_the_terminal(tmp_path: Path) -> None:
    Image.new("RGB", (900, 500)).save(tmp_path / "wide.png")
    Image.new("RGB", (50, 4000)).save(tmp_path / "tall.png")
    wide = render_picture(tmp_path / "wide.png", "palette", 40).splitlines()
    tall = render_picture(tmp_path / "tall.png", "palette", 40).splitlines()
    assert {line.count("▀") for line in wide} == {40}
    assert len(wide) == 11  # 500 * 40 / 900 / 2
    assert len(tall) == 24


def test_protocols_carry_the_file_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "p.png"
    path.write_bytes(bytes(range(256)) * 30)
    kitty = re.findall("\x1b_G(.*?);(.*?)\x1b\\\\", render_picture(path, "kitty", 100))
    assert [control for control, _ in kitty] == ["a=T,f=100,c=64,m=1", "m=1", "m=0"]
    assert base64.b64decode("".join(piece for _, piece in kitty)) == path.read_bytes()
    iterm = render_picture(path, "iterm", 30)
    assert iterm.startswith("\x1b]1337;File=inline=1;width=30;preserveAspectRatio=1:")
    assert base64.b64decode(iterm.partition(":")[2].rstrip("\a\n")) == path.read_bytes()
