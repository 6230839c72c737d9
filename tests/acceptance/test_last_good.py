"""`apply --last-good`: what ran well goes on with new inputs while a later version of it is refused."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import REPOSITORY, Cli, read_rows
from support.models import scale_model

from ortdeploy.files import content_store
from ortdeploy.manifest.loader import LoadOptions
from ortdeploy.manifest.named_paths import option_path
from ortdeploy.planning.versions.last_good import find_refusals

MANIFEST = """
version: 1
models:
  scale: {path: models/scale.onnx, providers: [CPU]CHECKS}
jobs:
  run:
    model: scale
    input: {path: inbox/*.npy, key: [row]}
    postprocess: [{argmax: y, as: best}, {labels: best, from: labels.txt, as: word}]
    output: {path: out, columns: [word]}
"""

Put = Callable[[str, int], None]


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """A job that names the largest of two numbers, and what adds files of rows whose largest is the one given."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inbox").mkdir()
    scale_model(tmp_path / "models/scale.onnx", width=2)
    (tmp_path / "labels.txt").write_text("left\nright\n")
    (tmp_path / "m.yaml").write_text(MANIFEST.replace("CHECKS", ""))

    def add(name: str, largest: int) -> None:
        rows = np.zeros((2, 2), np.float32)
        rows[:, largest] = 1
        np.save(tmp_path / f"inbox/{name}.npy", rows)

    add("a", 0)
    return add


def words(folder: Path) -> list[str]:
    return [str(row["word"]) for row in read_rows(folder / "out")]


def apply(cli: Cli, *more: str) -> int:
    return cli("apply", "m.yaml", "--last-good", *more).code


def break_text(folder: Path) -> None:
    (folder / "m.yaml").write_text("version: 1\njobz: {}\n")


def break_model(folder: Path) -> None:
    (folder / "models/scale.onnx").write_bytes(b"<!doctype html>")


def need_three_columns(folder: Path) -> None:
    scale_model(folder / "models/scale.onnx", width=3)


def remove_model(folder: Path) -> None:
    shutil.rmtree(folder / "models")


@pytest.mark.quick("remove_model")
@pytest.mark.parametrize("spoil", [break_text, break_model, need_three_columns, remove_model])
def test_new_inputs_are_run_as_before_while_a_version_is_refused(
    tmp_path: Path, cli: Cli, put: Put, spoil: Callable[[Path], None]
) -> None:
    assert apply(cli) == 0
    good = {name: (tmp_path / name).read_bytes() for name in ("m.yaml", "labels.txt", "models/scale.onnx")}
    spoil(tmp_path)
    (tmp_path / "labels.txt").write_text("of another version\nwhich is refused\n")
    put("b", 1)
    assert apply(cli) == 1
    assert words(tmp_path) == ["left", "left", "right", "right"]
    status = cli("status", "m.yaml")
    assert "m.yaml is refused since " in status.out
    assert " runs in its place" in status.out
    assert json.loads(cli("status", "m.yaml", "--format", "json").out)["jobs"][0]["committed"] == 4
    for name, content in good.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    put("c", 0)
    assert apply(cli) == 0
    assert words(tmp_path)[4:] == ["left", "left"]
    assert json.loads(cli("status", "m.yaml", "--format", "json").out)["refused"] == []


def test_what_the_last_apply_did_with_a_refused_manifest_is_told(tmp_path: Path, cli: Cli, put: Put) -> None:
    assert apply(cli) == 0
    remove_model(tmp_path)
    put("b", 1)
    assert apply(cli) == 1
    (first,) = json.loads(cli("status", "m.yaml", "--format", "json").out)["refused"]
    assert first["good"] is not None
    assert cli("apply", "m.yaml").code == 1  # which runs nothing in its place
    (second,) = json.loads(cli("status", "m.yaml", "--format", "json").out)["refused"]
    assert (second["good"], second["since"]) == (None, first["since"])
    assert len(list((tmp_path / ".ortdeploy").rglob("*.refused"))) == 1


def test_a_store_that_was_deleted_is_made_again_and_lasts(tmp_path: Path, cli: Cli, put: Put) -> None:
    assert apply(cli) == 0
    shutil.rmtree(tmp_path / ".ortdeploy/store")
    put("b", 1)
    assert apply(cli) == 0
    break_text(tmp_path)
    for name in "cd":  # each of which prunes the store
        put(name, 0)
        assert apply(cli) == 1
    assert words(tmp_path) == ["left", "left", "right", "right", *["left"] * 4]


def test_the_log_says_why_and_since_when(tmp_path: Path, cli: Cli, put: Put) -> None:
    apply(cli)
    break_text(tmp_path)
    events: list[dict[str, Any]] = []
    for name in "bc":
        put(name, 1)
        apply(cli, "--log-format", "json", "--log-file", name)
        lines = map(json.loads, (tmp_path / name).read_text().splitlines())
        events += [line for line in lines if line["event"] == "manifest.stands_in"]
    assert len(events) == 2
    assert events[0]["refused_since"] == events[1]["refused_since"]
    assert events[0]["reason"] == "missing-key: Missing key"
    assert len(words(tmp_path)) == 6


def test_a_version_that_fails_its_golden_check_is_refused_too(tmp_path: Path, cli: Cli, put: Put) -> None:
    checks = ", gate: true, checks: [golden]"
    (tmp_path / "m.yaml").write_text(MANIFEST.replace("CHECKS", checks))
    golden = tmp_path / "golden"
    golden.mkdir()
    for name, value in (("input_0", 1.0), ("output_0", 2.0)):
        tensor = onnx.numpy_helper.from_array(np.full((2, 2), value, np.float32), "xy"[name == "output_0"])
        (golden / f"{name}.pb").write_bytes(tensor.SerializeToString())
    assert apply(cli) == 0
    scale_model(tmp_path / "models/scale.onnx", width=2, factor=-1)
    put("b", 1)
    assert apply(cli) == 1
    assert words(tmp_path) == ["left", "left", "right", "right"]
    assert "is refused since" in cli("status", "m.yaml").out


def test_without_a_good_version_a_refusal_is_only_that(tmp_path: Path, cli: Cli, put: Put) -> None:
    assert cli("apply", "m.yaml").code == 0  # not asked to keep it
    break_text(tmp_path)
    put("b", 1)
    assert apply(cli) == 1
    assert len(words(tmp_path)) == 2
    assert not (tmp_path / ".ortdeploy/last-good").exists()


def test_what_was_kept_outlives_a_month_of_refusals_and_damage_is_said(
    tmp_path: Path, cli: Cli, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(cli)
    break_model(tmp_path)
    later = time.time() + 3 * content_store.FORGOTTEN_AFTER
    monkeypatch.setattr(time, "time", lambda: later)
    for name in "bc":
        put(name, 1)
        assert apply(cli) == 1
    assert len(words(tmp_path)) == 6
    for path in (tmp_path / ".ortdeploy/store/files").iterdir():
        path.chmod(0o600)
        path.write_bytes(b"damaged")
    put("d", 1)
    log = cli("apply", "m.yaml", "--last-good", "--log-format", "json", "--log-file", "log")
    assert log.code == 1
    assert len(words(tmp_path)) == 6
    assert "what was kept of it is not whole" in (tmp_path / "log").read_text()


def test_other_flags_are_another_version(tmp_path: Path, cli: Cli, put: Put) -> None:
    apply(cli)
    break_text(tmp_path)
    put("b", 1)
    assert apply(cli, "--set", "models.scale.providers=[CPU]") == 1
    assert len(words(tmp_path)) == 2


def test_files_of_options_are_those_of_the_version_that_ran_well(tmp_path: Path, cli: Cli, put: Put) -> None:
    text = MANIFEST.replace("CHECKS", ", session: {config: {ep.context_source_model_path: source.onnx}}")
    (tmp_path / "m.yaml").write_text(text)
    shutil.copy(tmp_path / "models/scale.onnx", tmp_path / "source.onnx")
    assert apply(cli) == 0
    break_text(tmp_path)
    (tmp_path / "source.onnx").unlink()
    put("b", 1)
    assert apply(cli) == 1
    assert words(tmp_path) == ["left", "left", "right", "right"]
    spec = next(one for one in find_refusals(["m.yaml"], LoadOptions(), None)).specs[0]
    kept = Path(option_path(spec, "source.onnx"))
    assert kept.is_relative_to(tmp_path / ".ortdeploy")
    assert kept.read_bytes() == (tmp_path / "models/scale.onnx").read_bytes()


PAINTER = """
version: 1
pipelines:
  paint: {preset: text-to-image, from: painter, providers: [CPU], steps: 2, height: 32, width: 32, latents: noise.npy}
jobs:
  run:
    pipeline: paint
    input: {path: prompts/*.csv, key: [path]}
    output: {path: out, format: npz}
"""


@pytest.mark.slow
def test_a_preset_is_painted_by_the_files_of_the_version_that_ran_well(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(REPOSITORY / "deployments/models/painter", tmp_path / "painter")
    np.save(tmp_path / "noise.npy", np.zeros((1, 4, 4, 4), np.float32))
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts/a.csv").write_text("prompt\na boat\n")
    (tmp_path / "m.yaml").write_text(PAINTER)
    planned = cli("plan", "m.yaml")
    assert planned.code == 0, planned.words
    assert apply(cli) == 0
    break_text(tmp_path)
    shutil.rmtree(tmp_path / "painter")
    (tmp_path / "noise.npy").unlink()
    (tmp_path / "prompts/b.csv").write_text("prompt\na boat\n")
    assert apply(cli) == 1
    first, second = (np.load(path)["image"] for path in sorted((tmp_path / "out").glob("part-*")))
    assert (first == second).all()
