"""Writes what commands print into the README and the pages whose snippets run: python tests/support/render_readme.py."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent.parent
sys.path.insert(0, str(REPOSITORY / "tests"))
from support.pages import EXAMPLES, carry_over, copy_digits, run_examples, run_page, shell  # noqa: E402  this script is started by its path

PAGES = ("docs/tutorial.md", "docs/editors.md")
TRANSLATIONS = {"README.md": "README.zh-CN.md", "docs/tutorial.md": "docs/tutorial.zh-CN.md"}


def run(command: str, folder: Path) -> str:
    """Return what a shell command prints, with this environment's ortdeploy on the path."""
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(  # noqa: S602  the README's own commands
        command,
        shell=True,
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
    ).stdout


def main() -> None:
    readme = REPOSITORY / "README.md"
    text = readme.read_text(encoding="utf-8")
    manifest = (REPOSITORY / "deployments/digits.yaml").read_text(encoding="utf-8")
    text = re.sub(r"```yaml\n.*?```", lambda _: f"```yaml\n{manifest}```", text, flags=re.DOTALL)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        shutil.copytree(
            REPOSITORY / "deployments", folder / "deployments", ignore=shutil.ignore_patterns("outbox", ".ortdeploy")
        )
        run("ortdeploy apply -q deployments/digits.yaml", folder)

        def fill(match: re.Match[str]) -> str:
            commands = re.findall(r"^\$ (.*)$", match[1], re.MULTILINE)
            return "```console\n" + "".join(f"$ {command}\n{run(command, folder)}" for command in commands) + "```"

        text = re.sub(r"```console\n(.*?)```", fill, text, flags=re.DOTALL)
    readme.write_text(text, encoding="utf-8")
    for page in PAGES:
        _render_page(REPOSITORY / page)
    for name in EXAMPLES:
        _render_example(REPOSITORY / "docs" / name)
    for original, translation in TRANSLATIONS.items():
        text = (REPOSITORY / translation).read_text(encoding="utf-8")
        carried = carry_over((REPOSITORY / original).read_text(encoding="utf-8"), text)
        (REPOSITORY / translation).write_text(carried, encoding="utf-8")


def _render_page(path: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "pumps"
        folder.mkdir()
        with shell(folder) as opened:
            text = run_page(path.read_text(encoding="utf-8"), opened, lambda printed, _: "No such file" not in printed)
    path.write_text(text, encoding="utf-8")


def _render_example(path: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        copy_digits(Path(temporary))
        with shell(Path(temporary)) as opened:
            text = run_examples(path.read_text(encoding="utf-8"), opened, lambda *_: True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
