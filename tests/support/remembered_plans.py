"""What tests of remembered plans and answers share: a machine on which nothing else changes, and looks at planning."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ortdeploy.cli import plans as plans_of_commands
from ortdeploy.cli.main import main
from ortdeploy.planning.remembered import nothing_to_do
from ortdeploy.planning.workflow import plan_manifests
from support import forks
from support.models import scale_model

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


def make_files(folder: Path) -> None:
    """Write what a deployment reads beside its manifest: a model, golden data, labels, and a folder for inputs."""
    scale_model(folder / "models/double.onnx")
    (folder / "inbox").mkdir()
    (folder / "labels.txt").write_text("w\nx\ny\nz\n")
    (folder / "checks/double").mkdir(parents=True)
    np.savez(folder / "checks/double/inputs.npz", x=np.ones((1, 4), np.float32))
    np.savez(folder / "checks/double/outputs.npz", y=np.full((1, 4), 2, np.float32))


def replace_file(path: Path) -> None:
    """Put a file of the same bytes and times in a file's place."""
    old = path.stat()
    copy = path.with_name("copy")
    shutil.copy2(path, copy)
    os.utime(copy, ns=(old.st_atime_ns, old.st_mtime_ns))
    copy.replace(path)


def link_to_moved(path: Path) -> None:
    """Move a file or folder two folders up and leave a link: what it leads to is the very same."""
    moved = path.parents[1] / f"moved-{path.name}"
    path.rename(moved)
    path.symlink_to(moved)


BESIDE_DATA: dict[str, Callable[[Path], object]] = {
    "the manifest's text": lambda at: (at / "m.yaml").write_text((at / "m.yaml").read_text() + "# more\n"),
    "a model's bytes": lambda at: scale_model(at / "models/double.onnx", factor=3.0),
    "a model's file": lambda at: replace_file(at / "models/double.onnx"),
    "a model is gone": lambda at: (at / "models/double.onnx").unlink(),
    "a model is a link": lambda at: link_to_moved(at / "models/double.onnx"),
    "the models' folder is a link out": lambda at: link_to_moved(at / "models"),
    "a file of a step": lambda at: (at / "labels.txt").write_text("1\n2\n3\n4\n"),
    "golden data": lambda at: (at / "checks/double/outputs.npz").unlink(),
    "more golden data": lambda at: (at / "checks/double/test_data_set_0").mkdir(),
    "a link in the state folder": lambda at: (at / ".ortdeploy/link").symlink_to(at.parent),
    "the state folder is a link": lambda at: link_to_moved(at / ".ortdeploy"),
}
"""What may change of a deployment beside its data, so that nothing of it is remembered any more."""


def _text_of(ending: str, text: str) -> Callable[[pytest.MonkeyPatch, Path], None]:
    read = nothing_to_do._text  # noqa: SLF001  stands for the system's own file

    def change(patch: pytest.MonkeyPatch, _: Path) -> None:
        patch.setattr(nothing_to_do, "_text", lambda path: text if path.endswith(ending) else read(path))

    return change


AROUND: dict[str, Callable[[pytest.MonkeyPatch, Path], object]] = {
    "an environment variable": lambda patch, _: patch.setenv("LC_ALL", "C"),
    "the boot": _text_of("boot_id", "another"),
    "the group's memory": _text_of("memory.max", "1000000"),
    "the user": lambda patch, _: patch.setattr(os, "geteuid", lambda: 12345),
    "the cores": lambda patch, _: patch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False),
    "a package": lambda patch, folder: patch.syspath_prepend(folder),
    "Python": lambda patch, _: patch.setattr(sys, "warnoptions", ["error"]),
    "the clock was set back": lambda patch, _: patch.setattr(time, "time_ns", lambda: 1),
}
"""What may change around a deployment."""
