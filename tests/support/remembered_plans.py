"""What tests of remembered plans and answers share: a machine on which nothing else changes, and looks at planning."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ortdeploy.cli import plans as plans_of_commands
from ortdeploy.planning import nothing_to_do
from ortdeploy.planning.workflow import plan_manifests

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


_AUDIT = """\
import json, sys
seen = set()
def hook(event, arguments):
    if event in {"open", "os.listdir", "os.scandir"} and isinstance(arguments[0], str):
        seen.add(arguments[0])
sys.addaudithook(hook)
from ortdeploy.cli.main import main
code = main(sys.argv[1:])
print(json.dumps([code, sorted(seen)]))
"""


def files_opened_by(folder: Path, *command: str) -> tuple[int, set[Path]]:
    """Run a command in a process of its own; return its code, and the files below its folder that it has opened."""
    done = subprocess.run(
        [sys.executable, "-c", _AUDIT, *command], cwd=folder, capture_output=True, text=True, check=True
    )
    code, seen = json.loads(done.stdout.splitlines()[-1])
    paths = {folder / path for path in seen}
    return code, {path for path in paths if path.is_relative_to(folder) and path.is_file()}
