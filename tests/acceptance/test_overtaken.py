"""Input files that go or change while an apply runs: it plans again, and only what is there is run."""

import argparse
import wave
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli, read_rows

from ortdeploy.cli import plans
from ortdeploy.jobs import resume
from ortdeploy.parts import committed
from ortdeploy.planning.planned import Planned

MANIFEST = """
version: 1
name: recurring
models: {double: {path: double.onnx, providers: [CPU]}}
jobs:
  run:
    model: double
    input: {path: PATH, key: [path]}
    output: {path: out, format: jsonl, rows_per_part: 2}
"""


def put(folder: Path, name: str, value: float, rows: int = 2) -> None:
    (folder / "inbox").mkdir(exist_ok=True)
    np.save(folder / "inbox" / f"{name}.npy", np.full((rows, 4), value, dtype=np.float32))


def values(folder: Path) -> list[tuple[str, float]]:
    found: list[dict[str, Any]] = read_rows(folder / "out")
    return [(Path(one["path"]).stem, one["y"][0] / 2) for one in found]


def after_looks(monkeypatch: pytest.MonkeyPatch, *changes: Callable[[], object]) -> None:
    """Let files change after a run has compared them with its plan, and before it reads them."""
    look, left = committed.check_inputs, list(changes)

    def look_and_change(*arguments: Any, **more: Any) -> None:
        look(*arguments, **more)
        if left:
            left.pop(0)()

    monkeypatch.setattr(resume, "check_inputs", look_and_change)


def test_a_file_that_is_withdrawn_or_replaced_costs_no_other_file(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = deployment / "m.yaml"
    manifest.write_text(MANIFEST.replace("PATH", "inbox/*.npy"))
    for number, name in enumerate("abcd"):
        put(deployment, name, number)
    after_looks(monkeypatch, (deployment / "inbox/b.npy").unlink, lambda: put(deployment, "c", 7, rows=3))
    result = cli("apply", manifest)
    assert result.code == 0, result
    assert values(deployment) == [("a", 0)] * 2 + [("c", 7)] * 3 + [("d", 3)] * 2
    assert result.words.count("plan.overtaken") == 2
    assert "inbox/b.npy cannot be read: No such file or directory. It was there when the plan was made" in result.words
    assert "7 rows committed, 0 failed" in result.out
    assert "job run: failed" not in result.out
    put(deployment, "e", 5)
    assert cli("apply", manifest).code == 0
    assert values(deployment)[7:] == [("e", 5)] * 2
    assert "nothing to do" in cli("apply", manifest).words


def test_a_recording_that_is_withdrawn_is_no_failed_row(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = deployment / "m.yaml"
    manifest.write_text(MANIFEST.replace("PATH", "inbox/*.wav, rate: 8000, columns: {x: samples}"))
    (deployment / "inbox").mkdir()
    for name in "abcde":
        with wave.open(str(deployment / "inbox" / f"{name}.wav"), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes(np.full(4, 16384, dtype="<i2").tobytes())
    after_looks(monkeypatch, (deployment / "inbox/d.wav").unlink)
    result = cli("apply", manifest)
    assert result.code == 0, result
    assert values(deployment) == [(name, 0.5) for name in "abce"]
    assert (deployment / "out/_failed.jsonl").read_text() == ""


def test_a_file_that_is_named_by_itself_must_stay(cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = deployment / "m.yaml"
    manifest.write_text(MANIFEST.replace("PATH", "[inbox/a.npy, inbox/b.npy]"))
    put(deployment, "a", 1)
    put(deployment, "b", 2)
    after_looks(monkeypatch, (deployment / "inbox/a.npy").unlink)
    result = cli("apply", manifest)
    assert result.code == 1, result
    assert "inbox/a.npy cannot be read: No such file or directory. It was there when the plan was made" in result.out


def test_a_job_whose_time_is_limited_does_not_begin_anew(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = deployment / "m.yaml"
    manifest.write_text(MANIFEST.replace("PATH", "inbox/*.npy") + "    until: 1h\n")
    put(deployment, "a", 1)
    put(deployment, "b", 2)
    after_looks(monkeypatch, (deployment / "inbox/b.npy").unlink)
    result = cli("apply", manifest)
    assert (result.code, "plan.overtaken" in result.words) == (1, False)
    assert cli("apply", manifest).code == 0
    assert values(deployment) == [("a", 1)] * 2


def test_only_the_manifest_whose_files_go_is_planned_again(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "mn":
        text = MANIFEST.replace("PATH", "inbox/*.npy").replace("recurring", name).replace("run:", f"{name}:")
        (deployment / f"{name}.yaml").write_text(text.replace("path: out", f"path: out/{name}"))
    put(deployment, "a", 1)
    put(deployment, "b", 2)
    after_looks(monkeypatch, (deployment / "inbox/b.npy").unlink)
    asked: list[list[Path]] = []
    plan = plans.plan_as_asked

    def note_and_plan(said: argparse.Namespace, **more: Any) -> Planned:
        asked.append([Path(one) for one in said.paths])
        return plan(said, **more)

    monkeypatch.setattr(plans, "plan_as_asked", note_and_plan)
    named = [deployment / "m.yaml", deployment / "n.yaml"]
    result = cli("apply", *named, "--job", "m", "--job", "n")
    assert result.code == 0, result
    assert asked == [named, named[:1], named[1:]]


def test_a_manifest_that_was_edited_meanwhile_is_for_the_next_apply(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = deployment / "m.yaml"
    manifest.write_text(MANIFEST.replace("PATH", "inbox/*.npy"))
    put(deployment, "a", 1)
    put(deployment, "b", 2)

    def edit() -> None:
        (deployment / "inbox/b.npy").unlink()
        manifest.write_text(manifest.read_text().replace("path: out", "path: another"))

    after_looks(monkeypatch, edit)
    result = cli("apply", manifest)
    assert (result.code, "plan.overtaken" in result.words) == (1, False)
    assert not (deployment / "another").exists()


def test_a_file_that_never_rests_ends_the_apply(cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = deployment / "m.yaml"
    manifest.write_text(MANIFEST.replace("PATH", "inbox/*.npy"))
    put(deployment, "a", 1)
    put(deployment, "b", 2)
    grow = [partial(put, deployment, "b", 2, rows) for rows in range(3, 6)]
    after_looks(monkeypatch, *grow)
    result = cli("apply", manifest)
    assert result.code == 1, result
    assert result.words.count("plan.overtaken") == 2
    assert "stable_for" in result.out
    monkeypatch.undo()
    assert cli("apply", manifest).code == 0
    assert values(deployment) == [("a", 1)] * 2 + [("b", 2)] * 5
