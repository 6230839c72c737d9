"""Pages whose snippets run: files are written, commands are run, and what these print is compared or written.

A block of `console` holds commands behind `$`, each with what it prints; one that ends in `&` goes on in the background. A
block with a title is a file. Blocks of `bash` install something and are not run, for there may be no network.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_DOCS = Path(__file__).parent.parent.parent / "docs"
_DEPLOYMENTS = _DOCS.parent / "deployments"

_BLOCK = re.compile(r"^```(\w+)(?: title=\"(.+?)\")?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_TRIES = 200
_BETWEEN = 0.25  # seconds, between two looks at what a command in the background has done


class Shell:
    """Runs the commands of one page, in a folder that `cd` changes."""

    def __init__(self, folder: Path, program: Path | None) -> None:
        self.folder = folder
        self.programs = [program, Path(sys.executable).parent] if program else [Path(sys.executable).parent]
        self.behind: list[subprocess.Popen[bytes]] = []

    def run(self, command: str, until: Callable[[str], bool]) -> str:
        """Return what a command prints; while something runs in the background, look again until it is as it should."""
        if command.startswith("cd "):
            self.folder = (self.folder / command.removeprefix("cd ")).resolve()
            return ""
        if command.endswith(" &"):
            self.behind.append(self._start(command.removesuffix(" &")))
            return ""
        for _ in range(_TRIES if self.behind else 1):
            process = self._start(f"{{ {command}\n}} 2>&1")
            printed = process.communicate()[0].decode()
            if until(printed):
                break
            if self.behind:
                time.sleep(_BETWEEN)
        return printed

    def _start(self, command: str) -> "subprocess.Popen[bytes]":
        path = os.pathsep.join([*map(str, self.programs), os.environ["PATH"]])
        return subprocess.Popen(  # noqa: S602  the page's own commands
            command,
            shell=True,
            cwd=self.folder,
            env={**os.environ, "PATH": path},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def end(self) -> None:
        """End what runs in the background."""
        for process in self.behind:
            os.killpg(process.pid, signal.SIGTERM)
            process.communicate()


@contextmanager
def shell(folder: Path, program: Path | None = None) -> Iterator[Shell]:
    """A shell whose background commands end with the block; `program` is a folder with an `ortdeploy` of its own."""
    found = Shell(folder, program)
    try:
        yield found
    finally:
        found.end()


def run_page(text: str, shell: Shell, until: Callable[[str, str], bool]) -> str:
    """Run a page's blocks in order, and return it with what they print. `until` gets what is printed and written."""

    def block(found: re.Match[str]) -> str:
        kind, title, body = found.groups()
        if title is not None:
            path = shell.folder / title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(body, encoding="utf-8")
        if kind != "console":
            return found[0]
        return f"```console\n{''.join(_run_all(body, shell, until))}```"

    return _BLOCK.sub(block, text)


def _run_all(body: str, shell: Shell, until: Callable[[str, str], bool]) -> Iterator[str]:
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, _, written = part.partition("\n")
        yield f"$ {command}\n{shell.run(command, lambda printed, written=written: until(printed, written))}"  # type: ignore[misc]


EXAMPLES = (
    "bundles.md",
    "captions.md",
    "failed-rows.md",
    "how-to/broken-file.md",
    "how-to/cluster.md",
    "how-to/from-a-script.md",
    "how-to/inbox.md",
    "how-to/monitoring.md",
    "how-to/next-model.md",
    "how-to/two-boards.md",
    "plans.md",
    "recurring.md",
    "results.md",
)
"""Pages whose blocks with `$` run in a copy of the folder of digits.yaml."""


def copy_digits(folder: Path) -> None:
    """Put digits.yaml, its model and its pictures into a folder."""
    for name in ("digits", "models"):
        shutil.copytree(_DEPLOYMENTS / name, folder / name)
    shutil.copy(_DEPLOYMENTS / "digits.yaml", folder)


def run_examples(text: str, shell: Shell, until: Callable[[str, str], bool]) -> str:
    """Run the blocks of a page that are files or begin with `$`, and return it with what they print."""

    def runs(found: re.Match[str]) -> bool:
        return found[2] is not None or found[3].startswith("$ ")

    return _BLOCK.sub(lambda found: run_page(found[0], shell, until) if runs(found) else found[0], text)


def manual() -> str:
    """Return all pages that describe the manifest, as one text."""
    return "\n".join(path.read_text("utf-8") for path in [_DOCS / "manifest.md", *sorted(_DOCS.glob("reference/*.md"))])


def snippets(text: str) -> list[tuple[str, str | None, str]]:
    """Return kind, title and text of each block."""
    return [(one[1], one[2], one[3]) for one in _BLOCK.finditer(text)]


def carry_over(original: str, translation: str) -> str:
    """Return a translation with the blocks of the original, in their order."""
    blocks = iter([one[0] for one in _BLOCK.finditer(original)])
    return _BLOCK.sub(lambda _: next(blocks), translation)
