"""What tests of remembered plans and answers share: a machine on which nothing else changes, and looks at planning."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ortdeploy.cli import plans as plans_of_commands
from ortdeploy.cli.main import main
from ortdeploy.planning.remembered import nothing_to_do
from ortdeploy.planning.workflow import plan_manifests
from support import forks

_CHECKOUT = Path(__file__).parents[2]


@contextmanager
def everything_is_old() -> Iterator[None]:
    """Let what has only just changed count as settled, and the name of the test as nothing.

    Nor do the folders of the checkout count from which Python imports: in a new one, other tests of the same run make
    `__pycache__` and `.hypothesis` there at any moment.
    """
    look_at = nothing_to_do._Look._at  # noqa: SLF001

    def look_beside_the_checkout(look: nothing_to_do._Look, path: str, *, data: bool = True) -> None:
        place = Path(path).absolute()
        if data or not place.is_relative_to(_CHECKOUT) or not place.is_dir():
            look_at(look, path, data=data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nothing_to_do._Look, "_at", look_beside_the_checkout)  # noqa: SLF001
        patch.setattr(nothing_to_do, "RACY_NS", -(10**18))
        own = nothing_to_do.OF_ONE_PROCESS | {"PYTEST_CURRENT_TEST"}
        patch.setattr(nothing_to_do, "OF_ONE_PROCESS", own)
        yield


class Plans:
    """Counts how often a command makes a plan."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = 0

        def counted(*arguments: object, **settings: object) -> object:
            self.made += 1
            return plan_manifests(*arguments, **settings)  # type: ignore[arg-type]  # as it was called

        monkeypatch.setattr(plans_of_commands, "plan_manifests", counted)


def _tell_files(command: Sequence[str]) -> None:
    seen: set[str] = set()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in {"open", "os.listdir", "os.scandir"} and isinstance(arguments[0], str):
            seen.add(arguments[0])

    sys.addaudithook(hook)  # which no process ever loses
    code = main(command)
    print(json.dumps([code, sorted(seen)]))  # noqa: T201  to the test's process


def files_opened_by(folder: Path, *command: str) -> tuple[int, set[Path]]:
    """Run a command in a process of its own; return its code, and the files below its folder that it has opened."""
    if not forks.CAN_FORK:
        pytest.skip("the process is a fork")
    with forks.Fork(lambda: _tell_files(command), cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        out, _ = process.communicate()
    assert process.returncode == 0
    code, seen = json.loads(out.splitlines()[-1])
    paths = {folder / path for path in seen}
    return code, {path for path in paths if path.is_relative_to(folder) and path.is_file()}
