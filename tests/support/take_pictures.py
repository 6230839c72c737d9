"""Takes pictures of the terminal for the documents: python tests/support/take_pictures.py [NAME...].

Each command runs in a terminal of tmux, so it sees a real one, and what is on the screen is drawn as SVG.
"""

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

REPOSITORY = Path(__file__).parents[2]
PICTURES = REPOSITORY / "docs/pictures"
BROKEN = "sed -e 's/\\[CPU\\]/[CUDA, CPU]/' -e 's/{layout: NCHW}\\]/{resize: [16, 16]}]/' digits.yaml > broken.yaml"
TAKEN: dict[str, tuple[int, int, str, str]] = {
    "findings": (100, 22, BROKEN, "ortdeploy plan broken.yaml"),
    "findings-narrow": (60, 30, BROKEN, "ortdeploy plan broken.yaml"),
    "findings-dumb": (80, 24, BROKEN, "TERM=dumb PYTHONIOENCODING=ascii ortdeploy plan broken.yaml"),
    "plan": (110, 16, "true", "ortdeploy plan views.yaml"),
    "plan-narrow": (60, 26, "true", "ortdeploy plan views.yaml"),
    "plan-plain": (90, 18, "true", "NO_COLOR=1 PYTHONIOENCODING=ascii ortdeploy plan pages.yaml"),
    "apply": (100, 18, "true", "ortdeploy apply digits.yaml"),
    "usage": (90, 8, "true", "ortdeploy apply digits.yaml --new"),
}
"""Columns, lines, what is done first, and the command that is shown, in a copy of deployments/."""

_END = "the picture may be taken"
_PATIENCE = 60.0


def screen(folder: Path, columns: int, lines: int, command: str) -> str:
    """Return what a terminal shows once a command has ended, with its colors as escape codes."""
    server = ["tmux", "-L", f"pictures-{folder.name}", "-f", "/dev/null"]
    path = f"PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH PYTHONPATH={shlex.quote(str(REPOSITORY))}"
    shown = f"clear; printf '\\033[1m$ %s\\033[0m\\n' {shlex.quote(command)}"
    line = f"export {path} PS1=; {shown}; {command}; printf '\\033]2;{_END}\\007'; sleep 60"
    start = [*server, "new-session", "-d", "-x", str(columns), "-y", str(lines), "-c", str(folder), line]
    subprocess.run(start, check=True)
    try:
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            title = subprocess.run(
                [*server, "display", "-p", "#{pane_title}"], capture_output=True, text=True, check=True
            )
            if title.stdout.strip() == _END:
                break
            time.sleep(0.1)
        taken = subprocess.run([*server, "capture-pane", "-e", "-p"], capture_output=True, text=True, check=True)
    finally:
        subprocess.run([*server, "kill-server"], check=False)
    return taken.stdout.rstrip("\n")


def as_svg(text: str, columns: int, title: str) -> str:
    """Return a screen as SVG that asks for no font of the network."""
    with tempfile.TemporaryFile("w", encoding="utf-8") as nowhere:
        console = Console(width=columns, record=True, file=nowhere, force_terminal=True, color_system="truecolor")
        console.print(Text.from_ansi(text))
        svg = console.export_svg(title=title, unique_id="terminal")
    return re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)


def main(names: list[str]) -> None:
    """Take the pictures, all or those that are named."""
    PICTURES.mkdir(exist_ok=True)
    for name in names or TAKEN:
        columns, lines, before, command = TAKEN[name]
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "deployments"
            shutil.copytree(
                REPOSITORY / "deployments", folder, ignore=shutil.ignore_patterns("outbox", ".ortdeploy", "gallery")
            )
            subprocess.run(before, shell=True, cwd=folder, check=True)  # noqa: S602  our own commands
            text = screen(folder, columns, lines, command)
        (PICTURES / f"{name}.svg").write_text(as_svg(text, columns, "ortdeploy"), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
