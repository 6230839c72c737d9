"""deployments/fleet/demo.sh: from the commit to twelve devices, with all that may go wrong on the way."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY
from support.pages import snippets

PAGE = (REPOSITORY / "docs/fleet-demo.md").read_text(encoding="utf-8")
_DIFFER = re.compile(r"[0-9a-f]{64}|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
"""Digests and times, which differ between two runs, or between two versions of onnx."""

PROGRAM = """\
#!/bin/sh
case "$*" in *" --log-format "*) exec "{whole}" "$@" ;; esac
exec "{fork}" "$@"
"""
"""The run whose power fails is a program of its own, which a signal kills at once; all others are forks."""


def lasting(text: str) -> list[str]:
    """The lines of an output, without what differs."""
    return [re.sub(_DIFFER, lambda found: "#" * len(found[0]), line) for line in text.splitlines()]


@pytest.mark.slow
@pytest.mark.process
def test_the_demo_keeps_its_promises_and_prints_what_the_page_shows(tmp_path: Path, shell_program: Path) -> None:
    python = Path(sys.executable).parent
    program = tmp_path / "bin/ortdeploy"
    program.parent.mkdir()
    program.write_text(PROGRAM.format(whole=python / "ortdeploy", fork=shell_program / "ortdeploy"))
    program.chmod(0o755)
    path = os.pathsep.join([str(program.parent), str(python), os.environ["PATH"]])
    done = subprocess.run(
        [REPOSITORY / "deployments/fleet/demo.sh", tmp_path / "demo"],
        env={**os.environ, "PATH": path, "ORTDEPLOY_PROFILE": "of the user"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    (shown,) = [body for kind, _, body in snippets(PAGE) if kind == "text"]
    assert lasting(done.stdout.lstrip("\n")) == lasting(shown)


def test_the_readme_shows_lines_of_the_page() -> None:
    (excerpt,) = [
        body for kind, _, body in snippets((REPOSITORY / "README.md").read_text(encoding="utf-8")) if kind == "text"
    ]
    lines = iter(PAGE.splitlines())
    assert all(line in lines for line in excerpt.splitlines()), "in their order"


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    command = [REPOSITORY / "deployments/fleet/demo.sh", tmp_path]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1
    assert [one.name for one in tmp_path.iterdir()] == ["mine"]
