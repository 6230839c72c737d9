"""Where a file should be, there may be a pipe, a socket or a device: it is named, and nobody waits for it."""

import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.changed_files import PAINTED, prepare
from support.effort import effort
from support.forks import CAN_FORK, start_program

pytestmark = [pytest.mark.skipif(not CAN_FORK, reason="only forks are quick enough"), pytest.mark.process]

PATIENCE = 60.0
"""Seconds after which a command waits for ever; on a busy machine one takes some seconds."""
MANY = effort(few=0, many=1)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        before = Path.cwd()
        os.chdir(path.parent)  # the name of a socket has at most about a hundred characters
        try:
            one.bind(path.name)
        finally:
            os.chdir(before)


def zeros(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))
    except PermissionError:
        path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.mkdir()


KINDS: Mapping[str, Callable[[Path], None]] = {"pipe": pipe, "socket": listening, "device": zeros, "folder": folder}


@contextmanager
def replaced(path: Path, kind: str) -> Iterator[None]:
    """Have something else under a file's name."""
    aside = path.with_name(f"{path.name}.aside-")
    path.rename(aside)
    KINDS[kind](path)
    try:
        yield
    finally:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        with suppress(FileNotFoundError):  # a prune deletes what the content store does not know
            aside.rename(path)


def told(arguments: Sequence[str], cwd: Path) -> tuple[int, str]:
    """The exit code of a command and what it printed; a command that waits fails the test."""
    process = start_program(
        arguments, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8"
    )
    try:
        said, _ = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        pytest.fail(f"ortdeploy {' '.join(arguments)} waits for ever: {[*cwd.rglob('*.aside-')]}")
    assert "Traceback" not in said, f"{arguments}: {said}"
    assert process.returncode in {0, 1, 2, 4, 5, 64}, f"{arguments}: {process.returncode}: {said}"
    return process.returncode, said


READ = ("models/m.onnx", "models/w.bin", "fr.onnx_adapter", "labels.txt", "tokenizer.json", "options.json", "data.npy")
"""Files of the deployment `npy`, of which none can be done without; text.csv and m.yaml are read in their own ways."""


@pytest.mark.quick("models/w.bin-pipe", "tokenizer.json-pipe", "m.yaml-pipe")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*READ, "text.csv", "m.yaml"])
def test_what_is_no_file_is_refused_by_name(name: str, kind: str, tmp_path: Path) -> None:
    prepare(tmp_path, "npy")
    with replaced(tmp_path / name, kind):
        for command in (["apply", "m.yaml"], ["plan", "m.yaml"], ["try", "m.yaml"])[
            : 1 if kind == "pipe" and not MANY else 3
        ]:
            code, said = told(command, tmp_path)
            assert code == 1, said
            assert Path(name).name in said


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
@pytest.mark.parametrize("name", PAINTED)
def test_what_is_no_file_of_a_preset_is_refused_by_name(name: str, kind: str, tmp_path: Path) -> None:
    prepare(tmp_path, "painter")
    with replaced(tmp_path / name, kind):
        code, said = told(["apply", "m.yaml"], tmp_path)
        assert code == 1, said
        assert Path(name).name in said


EVERY_COMMAND = (
    ["status", "m.yaml"], ["verify", "m.yaml"], ["plan", "m.yaml"], ["apply", "m.yaml"], ["apply", "plan.json"],
    ["retry", "m.yaml", "--job", "numbers"], ["compact", "m.yaml"], ["state", "backup", "copy.zip"], ["diff", "m.yaml"],
    ["check", "m.yaml"], ["lock", "m.yaml"], ["cache", "prune"], ["apply", "m.yaml", "--new-run"],
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_no_command_waits_for_anything_that_a_run_has_left(kind: str, tmp_path: Path) -> None:
    """Each file of the state folder and of the outputs, and the plan, is something else, one after the other."""
    prepare(tmp_path, "npy")
    assert told(["plan", "m.yaml", "--out", "plan.json"], tmp_path)[0] == 0
    assert told(["apply", "m.yaml"], tmp_path)[0] == 0
    made = [path for part in (".ortdeploy", "out") for path in sorted((tmp_path / part).rglob("*")) if path.is_file()]
    assert len(made) > 10
    for index, path in enumerate((tmp_path / "plan.json", *made)):
        for command in EVERY_COMMAND if MANY else (EVERY_COMMAND[index % len(EVERY_COMMAND)],):
            if path.is_file():
                shutil.copytree(tmp_path, kept := tmp_path.with_name(f"{tmp_path.name}-kept"), symlinks=True)
                with replaced(path, kind):
                    told(command, tmp_path)
                shutil.rmtree(tmp_path)
                kept.rename(tmp_path)


FLAGS: Mapping[str, Sequence[str]] = {
    "manifest": ["validate", "pipe"],
    "manifest of plan": ["plan", "pipe"],
    "saved plan": ["apply", "pipe"],
    "overlay": ["validate", "m.yaml", "--overlay", "pipe"],
    "device": ["plan", "m.yaml", "--device", "pipe"],
    "letters": ["retry", "m.yaml", "--job", "numbers", "--from", "pipe"],
    "one of two": ["diff", "pipe", "m.yaml"],
    "the other": ["diff", "m.yaml", "pipe"],
    "model": ["init", "pipe"],
    "adapter to convert": ["adapter", "convert", "pipe", "--model", "models/m.onnx", "-o", "new.onnx_adapter"],
    "its model": ["adapter", "convert", "fr.onnx_adapter", "--model", "pipe", "-o", "new.onnx_adapter"],
    "copy of a state": ["state", "restore", "pipe"],
    "locked manifest": ["lock", "pipe"],
    "standard input": ["validate", "/dev/stdin"],
    "zeros": ["validate", "/dev/zero"],
    "terminal": ["apply", "/dev/tty"],
    "overlay to write": ["tune", "m.yaml", "--job", "numbers", "-o", "pipe"],
    "plan to write": ["plan", "m.yaml", "--out", "pipe"],
    "device to write": ["device", "-o", "pipe"],
    "copy to write": ["state", "backup", "pipe"],
    "state": ["apply", "m.yaml", "--state-dir", "pipe"],
}


@pytest.mark.quick("manifest", "saved plan", "model", "letters")
@pytest.mark.parametrize("flag", FLAGS)
def test_no_argument_is_waited_for(flag: str, tmp_path: Path) -> None:
    prepare(tmp_path, "npy")
    os.mkfifo(tmp_path / "pipe")
    code, said = told(FLAGS[flag], tmp_path)
    assert code in {1, 64}, said
    assert any(word in said for word in ("pipe", "device", "/dev/stdin")), said


def test_a_deep_output_is_an_output(deployment: Path) -> None:
    text = (deployment / "m.yaml").read_text().replace("outbox/run", "/".join(["a"] * 1500))
    (deployment / "m.yaml").write_text(text)
    try:
        for command in ("apply", "status", "verify"):
            assert told([command, "m.yaml"], deployment)[0] == 0
    finally:
        subprocess.run(["/bin/rm", "-rf", deployment / "a"], check=True)  # Python's rmtree calls itself for each folder


def test_a_note_that_cannot_be_removed_ends_no_run(deployment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unlink = Path.unlink

    def refuse(path: Path, *given: Any, **named: Any) -> None:
        if path.parent.name == "locks":
            raise PermissionError(1, "Operation not permitted", str(path))
        unlink(path, *given, **named)

    monkeypatch.setattr(Path, "unlink", refuse)
    code, said = told(["apply", "m.yaml"], deployment)
    assert code == 0, said
    assert len(list((deployment / "outbox/run").glob("part-*"))) == 1
    assert np.load(deployment / "data.npy").shape == (20, 4)
