"""Takes the pictures of the documents: python tests/support/take_pictures.py [NAME...]; all of them take a minute.

Each command runs in a terminal of tmux, so it sees a real one, and what is on the screen is drawn as SVG. Pages of
reports are drawn by Qt's Chromium (`browser.py`), if PyQt6-WebEngine is installed.
"""

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.text import Text

REPOSITORY = Path(__file__).parents[2]
PICTURES = REPOSITORY / "docs/pictures"
BROKEN = "sed -e 's/\\[CPU\\]/[CUDA, CPU]/' -e 's/{layout: NCHW}\\]/{resize: [16, 16]}]/' digits.yaml > broken.yaml"
MANY = 'python -c \'import os, glob; [os.link(f, f[:-6] + f"x{{i}}" + f[-6:]) for f in glob.glob("{folder}/*.png") for i in range({copies})]\''
MANY_DIGITS, MANY_PAGES = (
    MANY.format(folder=folder, copies=copies) for folder, copies in (("digits", 60), ("pages", 6))
)


@dataclass(frozen=True, kw_only=True)
class Screen:
    """A terminal of `size` (columns and lines), and the command that runs in it, in a copy of deployments/.

    `before` is done first, and not shown. The picture is taken at the end of the command, or once the screen has what
    the pattern `moment` finds; if the terminal is `narrowed` then to some columns, a second later.
    """

    size: tuple[int, int]
    command: str
    before: str = "true"
    moment: str | None = None
    narrowed: int | None = None


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page that commands write, in a window of `size` at most, in a light or dark scheme."""

    size: tuple[int, int]
    scheme: str
    file: str
    commands: tuple[str, ...]


LIVE = r"[2-9]\d%"
SCREENS = {
    "findings": Screen(size=(100, 22), before=BROKEN, command="ortdeploy plan broken.yaml"),
    "findings-narrow": Screen(size=(60, 30), before=BROKEN, command="ortdeploy plan broken.yaml"),
    "findings-dumb": Screen(
        size=(80, 24), before=BROKEN, command="TERM=dumb PYTHONIOENCODING=ascii ortdeploy plan broken.yaml"
    ),
    "findings-ci": Screen(size=(100, 14), before=BROKEN, command="ortdeploy plan broken.yaml --format github"),
    "plan": Screen(size=(110, 16), command="ortdeploy plan views.yaml"),
    "plan-narrow": Screen(size=(60, 26), command="ortdeploy plan views.yaml"),
    "plan-plain": Screen(size=(90, 18), command="NO_COLOR=1 PYTHONIOENCODING=ascii ortdeploy plan pages.yaml"),
    "apply": Screen(size=(100, 18), command="ortdeploy apply digits.yaml"),
    "apply-live": Screen(size=(100, 12), before=MANY_DIGITS, command="ortdeploy apply digits.yaml", moment=LIVE),
    "apply-resized": Screen(
        size=(100, 12), before=MANY_DIGITS, command="ortdeploy apply digits.yaml", moment=LIVE, narrowed=60
    ),
    "apply-pipe": Screen(size=(100, 20), command="ortdeploy apply digits.yaml 2>&1 | cut -c1-100"),
    "check": Screen(size=(100, 10), command="ortdeploy check views.yaml"),
    "tune": Screen(size=(100, 29), command="ortdeploy tune digits.yaml --job read --seconds 0.5"),
    "usage": Screen(size=(90, 8), command="ortdeploy apply digits.yaml --new"),
}
_APPLY = "printf broken > pages/z.png; ortdeploy apply -q pages.yaml --set jobs.read.errors.max_failed=1"
_REPORT = (MANY_PAGES, f"{_APPLY} --set jobs.read.report=html")
_TWO = (
    MANY_PAGES,
    f"{_APPLY}; mv outbox before; rm -r .ortdeploy",
    f"{_APPLY} --set jobs.read.batch.size=16",
    "ortdeploy diff -q before/pages/_run.json outbox/pages/_run.json --report diff.html",
)
PAGES = {
    f"report-{width}-{scheme}": Page(
        size=(width, height), scheme=scheme, file="outbox/pages/_run.html", commands=_REPORT
    )
    for width, height in ((1200, 1900), (800, 2300), (390, 2300))
    for scheme in ("light", "dark")
} | {"diff-1200-light": Page(size=(1200, 1700), scheme="light", file="diff.html", commands=_TWO)}

DRAWN = {"try-ocr": "ocr"}
"""Pictures that `try` draws, with the manifest of the gallery; they need rapidocr and scikit-image."""

_END = "the picture may be taken"
_PATIENCE = 60.0
_QUALITY = 80
"""Of a WebP."""


@contextmanager
def deployments() -> Iterator[Path]:
    """Make a copy of deployments/, in which nothing has run."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "deployments"
        shutil.copytree(
            REPOSITORY / "deployments", folder, ignore=shutil.ignore_patterns("outbox", ".ortdeploy", "gallery")
        )
        yield folder


def in_shell(command: str) -> str:
    """Return a command with the ortdeploy of this repository before all others."""
    path = f"PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH PYTHONPATH={shlex.quote(str(REPOSITORY))}"
    return f"export {path}; {command}"


def shown(screen: Screen, folder: Path) -> str:
    """Return what a terminal shows at the moment of the picture, with its colors as escape codes."""
    server = ["tmux", "-L", f"pictures-{folder.parent.name}", "-f", "/dev/null"]
    header = f"clear; printf '\\033[1m$ %s\\033[0m\\n' {shlex.quote(screen.command)}"
    line = in_shell(f"PS1=; {header}; {screen.command}; printf '\\033]2;{_END}\\007'; sleep 60")
    columns, lines = screen.size
    start = [*server, "new-session", "-d", "-x", str(columns), "-y", str(lines), "-c", str(folder), line]
    subprocess.run(start, check=True)
    try:
        until = time.monotonic() + _PATIENCE
        while not _is_ready(screen, server) and time.monotonic() < until:
            time.sleep(0.1)
        if screen.narrowed is not None:
            subprocess.run([*server, "resize-window", "-x", str(screen.narrowed), "-y", str(lines)], check=True)
            time.sleep(1)
        return _ask(server, "capture-pane", "-e", "-p").rstrip("\n")
    finally:
        subprocess.run([*server, "kill-server"], check=False)


def _is_ready(screen: Screen, server: list[str]) -> bool:
    if screen.moment is not None:
        return re.search(screen.moment, _ask(server, "capture-pane", "-p")) is not None
    return _ask(server, "display", "-p", "#{pane_title}").strip() == _END


def _ask(server: list[str], *command: str) -> str:
    return subprocess.run([*server, *command], capture_output=True, text=True, check=True).stdout


def as_svg(text: str, columns: int, title: str) -> str:
    """Return a screen as SVG that asks for no font of the network."""
    with tempfile.TemporaryFile("w", encoding="utf-8") as nowhere:
        console = Console(width=columns, record=True, file=nowhere, force_terminal=True, color_system="truecolor")
        console.print(Text.from_ansi(text))
        svg = console.export_svg(title=title, unique_id="terminal")
    return re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)


def photograph(page: Page, path: Path, target: Path) -> None:
    """Draw a page into a WebP, which takes a third of a PNG."""
    columns, lines = page.size
    browser, whole = Path(__file__).parent / "browser.py", path.with_suffix(".png")
    script = "document.documentElement.scrollHeight"
    command = [sys.executable, str(browser), str(path), script, str(columns), page.scheme, str(whole)]
    subprocess.run(command, capture_output=True, check=True)
    with Image.open(whole) as drawn:
        drawn.convert("RGB").crop((0, 0, columns, min(lines, drawn.height))).save(target, quality=_QUALITY, method=6)


def take_screen(name: str) -> None:
    """Take the picture of a terminal."""
    screen = SCREENS[name]
    with deployments() as folder:
        subprocess.run(in_shell(screen.before), shell=True, cwd=folder, check=True)  # noqa: S602  our own commands
        text = shown(screen, folder)
    columns = screen.narrowed or screen.size[0]
    (PICTURES / f"{name}.svg").write_text(as_svg(text, columns, "ortdeploy"), encoding="utf-8")


def take_pages(names: list[str]) -> None:
    """Take the pictures of pages; those of one page show the same run."""
    for commands in dict.fromkeys(PAGES[name].commands for name in names):
        with deployments() as folder:
            for command in commands:
                subprocess.run(in_shell(command), shell=True, cwd=folder, check=True)  # noqa: S602  our own commands
            for name in (name for name in names if PAGES[name].commands == commands):
                photograph(PAGES[name], folder / PAGES[name].file, PICTURES / f"{name}.webp")


def take_drawn(name: str) -> None:
    """Take a picture that `try` draws: a photograph of a page, with the lines of text that two networks read in it."""
    from skimage import data  # noqa: PLC0415  not for the other pictures

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "gallery"
        shutil.copytree(REPOSITORY / "deployments/gallery", folder, ignore=shutil.ignore_patterns("outbox", "inbox"))
        inbox = folder / "inbox" / DRAWN[name]
        inbox.mkdir(parents=True)
        photo = Image.fromarray(data.page()).convert("RGB")
        photo.resize((photo.width * 3, photo.height * 3), Image.Resampling.LANCZOS).save(inbox / "page.png")
        tried = f"python fetch.py {DRAWN[name]} && python -m ortdeploy try {DRAWN[name]}.yaml --format json"
        done = subprocess.run(in_shell(tried), shell=True, cwd=folder, check=True, capture_output=True, text=True)  # noqa: S602
        (drawn,) = re.findall(r"[^\s\"]+/drawn/[^\"]+\.png", done.stdout)
        with Image.open(drawn) as picture:
            picture.convert("RGB").save(PICTURES / f"{name}.webp", quality=_QUALITY, method=6)


def main(names: list[str]) -> None:
    """Take the pictures, all or those that are named."""
    PICTURES.mkdir(exist_ok=True)
    for name in (name for name in names or DRAWN if name in DRAWN):
        take_drawn(name)
    for name in names or SCREENS:
        if name in SCREENS:
            take_screen(name)
    pages = [name for name in names or PAGES if name in PAGES]
    if pages and importlib.util.find_spec("PyQt6") is None:
        sys.exit("The pictures of pages need PyQt6-WebEngine: pip install PyQt6-WebEngine")
    take_pages(pages)


if __name__ == "__main__":
    main(sys.argv[1:])
