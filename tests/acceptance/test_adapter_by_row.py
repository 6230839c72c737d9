"""Adapters of a job's rows: one, several, or one for each row by a column; through one session, in the input's order."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from support.effort import effort
from support.models import Shape, lora_model, make_adapter, save_model

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.process.memory_limit import MemoryWatch
from ortdeploy.runtime.session import OrtSession

MANIFEST = """\
version: 1
models:
  m: {path: m.onnx}
adapters:
  french: {path: fr.onnx_adapter, model: m}
  italian: {path: it.onnx_adapter, model: m}
jobs:
  run:
    model: m
    adapter: ADAPTER
    input: {path: data.jsonl, key: [row, language]}
    batch: {size: SIZE}
    output: {path: out, format: jsonl, rows_per_part: PART}
    errors: {max_failed: 100%}
"""
BY_ROW = "{column: language, map: {fr: french, it: italian}, otherwise: none}"
FACTORS = {"fr": 1.0, "it": -2.0}
A, B = np.ones((4, 2), np.float32), np.full((2, 4), 0.125, np.float32)


def prepare(
    folder: Path,
    languages: list[str],
    adapter: str = BY_ROW,
    *,
    size: int = 4,
    part: int = 100,
    required: bool = False,
) -> list[list[float]]:
    """Write a deployment whose adapters add once the sum of a row, or take it away twice; return what must come out."""
    lora_model(folder / "m.onnx", required=required)
    for name, factor in FACTORS.items():
        make_adapter(folder / f"{name}.onnx_adapter", lora_A=A, lora_B=(factor * B).astype(np.float32))
    rows = [np.full(4, number, np.float32) for number in range(len(languages))]
    lines = [json.dumps({"x": row.tolist(), "language": text}) for row, text in zip(rows, languages, strict=True)]
    (folder / "data.jsonl").write_text("".join(f"{line}\n" for line in lines))
    text = MANIFEST.replace("ADAPTER", adapter).replace("SIZE", str(size)).replace("PART", str(part))
    (folder / "m.yaml").write_text(text)
    return [(row * (1 + FACTORS.get(text, 0))).tolist() for row, text in zip(rows, languages, strict=True)]


def written(folder: Path) -> list[dict[str, Any]]:
    parts = sorted((folder / "out").glob("part-*"))
    return [json.loads(line) for part in parts for line in part.read_text().splitlines()]


def report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "out/_run.json").read_text())
    return found


@pytest.mark.parametrize("required", [False, True])
def test_each_row_gets_its_adapter_and_the_order_stays(cli: Cli, tmp_path: Path, required: bool) -> None:
    """Also where the graph's LoRA inputs have no defaults, which ONNX Runtime's Python binding refuses by itself."""
    languages = ["fr", "de", "it", "fr", "fr", "it", "de", "fr", "it", "it", "fr"]
    wanted = prepare(tmp_path, languages, required=required)
    applied = cli("apply", tmp_path / "m.yaml", "--log-format", "json")
    assert applied.code == 0
    rows = written(tmp_path)
    assert [row["y"] for row in rows] == wanted
    assert [(row["row"], row["language"]) for row in rows] == list(enumerate(languages))
    assert report(tmp_path)["adapter_rows"] == {"french": 5, "italian": 4, "none": 2}
    assert applied.err.count('"session.opened"') == 1
    assert "adapters by language: fr french, it italian, otherwise none" in cli("plan", prepared(tmp_path)).out


def prepared(folder: Path) -> Path:
    """The same deployment with its output still to be made."""
    (folder / "out").rename(folder / "old")
    return folder / "m.yaml"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=effort(3, 40), deadline=None)
@given(
    languages=st.lists(st.sampled_from(["fr", "it", "de"]), min_size=1, max_size=40),
    size=st.integers(1, 5),
    part=st.integers(1, 30),
)
def test_any_mixture_in_any_batches_gives_every_row_once(
    cli: Cli, tmp_path_factory: pytest.TempPathFactory, languages: list[str], size: int, part: int
) -> None:
    folder = tmp_path_factory.mktemp("by-row")
    wanted = prepare(folder, languages, size=size, part=part)
    assert cli("apply", folder / "m.yaml", "-q").code == 0
    assert [row["y"] for row in written(folder)] == wanted


def test_rows_that_are_sorted_by_adapter_go_on_behind_what_was_kept(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(_: MemoryWatch) -> bool:
        raise OrtdeployError("enough")

    wanted = prepare(tmp_path, ["fr", "it", "de", "fr"] * 10)
    with monkeypatch.context() as patch:
        patch.setattr(MemoryWatch, "is_near", end)
        assert "; 12 more rows are kept" in cli("apply", tmp_path / "m.yaml").out
    assert cli("apply", tmp_path / "m.yaml").code == 0
    assert [row["y"] for row in written(tmp_path)] == wanted


def test_a_row_that_no_adapter_is_meant_for_fails_alone_and_is_foreseen(cli: Cli, tmp_path: Path) -> None:
    wanted = prepare(tmp_path, ["fr", "xx", "it"], BY_ROW.replace("none", "fail"))
    planned = cli("plan", tmp_path / "m.yaml", "--format", "json").json["diagnostics"]
    assert [one["rule"] for one in planned] == ["failing-rows"]
    assert 'Row 1 (data.jsonl:2), contract: no adapter is meant for language "xx".' in planned[0]["detail"]
    assert cli("apply", tmp_path / "m.yaml", "-q").code == 0
    assert [row["y"] for row in written(tmp_path)] == [wanted[0], wanted[2]]
    (failed,) = map(json.loads, (tmp_path / "out/_failed.jsonl").read_text().splitlines())
    assert (failed["row"], failed["stage"], failed["code"]) == (1, "contract", "no-adapter")


def test_a_row_with_two_faults_counts_once(cli: Cli, tmp_path: Path) -> None:
    prepare(tmp_path, ["fr", "xx"], BY_ROW.replace("none", "fail"))
    lines = (tmp_path / "data.jsonl").read_text().splitlines()
    (tmp_path / "data.jsonl").write_text(f'{lines[0]}\n{{"x": [1, 2], "language": "xx"}}\n')
    (found,) = cli("plan", tmp_path / "m.yaml", "--format", "json").json["diagnostics"]
    assert found["detail"].startswith(
        "1 of the first 2 rows cannot be fed to the model. Row 1 (data.jsonl:2), contract: no"
    )


def test_another_adapter_may_be_for_all_others(cli: Cli, tmp_path: Path) -> None:
    prepare(tmp_path, ["fr", "xx"], BY_ROW.replace("none", "italian"))
    assert cli("apply", tmp_path / "m.yaml", "-q").code == 0
    assert [row["y"][0] for row in written(tmp_path)] == [0.0, -1.0]


@pytest.mark.slow
def test_adapters_that_bring_different_parameters_apply_together(cli: Cli, tmp_path: Path) -> None:
    prepare(tmp_path, ["", ""], "[french, italian]")
    refused = cli("plan", tmp_path / "m.yaml", "--format", "json").json["diagnostics"]
    assert [one["rule"] for one in refused] == ["overlapping-adapters"]
    make_adapter(tmp_path / "fr.onnx_adapter", lora_A=A)
    make_adapter(tmp_path / "it.onnx_adapter", lora_B=B)
    assert cli("plan", tmp_path / "m.yaml", "--format", "json").json["diagnostics"] == []
    assert cli("apply", tmp_path / "m.yaml", "-q").code == 0
    assert [row["y"][0] for row in written(tmp_path)] == [0.0, 2.0]
    assert report(tmp_path)["adapter_rows"] == {"french + italian": 2}
    make_adapter(tmp_path / "it.onnx_adapter", lora_B=np.ones((8, 4), np.float32))
    (wrong,) = cli("plan", prepared(tmp_path), "--format", "json").json["diagnostics"]
    assert wrong["rule"] == "adapter-mismatch"
    assert wrong["detail"].startswith(
        'Adapters "french" and "italian" together do not fit model "m": "rank" must be one number'
    )


@pytest.mark.slow
def test_a_changed_choice_is_another_job(cli: Cli, tmp_path: Path) -> None:
    prepare(tmp_path, ["fr", "it"])
    assert cli("apply", tmp_path / "m.yaml", "-q").code == 0
    assert "nothing to do" in cli("apply", tmp_path / "m.yaml").out
    text = (tmp_path / "m.yaml").read_text()
    (tmp_path / "m.yaml").write_text(text.replace("it: italian", "it: french"))
    refused = cli("apply", tmp_path / "m.yaml")
    assert refused.code == 1
    assert "made before these changed: adapter" in " ".join(refused.out.split())


def test_an_adapter_that_changes_nothing_is_said(cli: Cli, tmp_path: Path) -> None:
    prepare(tmp_path, ["", ""], "french")
    make_adapter(tmp_path / "fr.onnx_adapter", lora_A=A, lora_B=0 * B)
    applied = cli("apply", tmp_path / "m.yaml", "--log-format", "json")
    assert applied.code == 0
    (event,) = [line for line in map(json.loads, applied.err.splitlines()) if line["event"] == "adapter.without_effect"]
    assert event["adapters"] == ["french"]
    assert report(tmp_path)["adapter"] == "french"


@pytest.mark.parametrize("how", ["in place", "renamed"])
def test_an_adapter_that_is_changed_or_replaced_while_a_job_runs_changes_nothing_of_it(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    wanted = prepare(tmp_path, ["fr"] * 8, part=4, size=4)
    other = make_adapter(tmp_path / "other.onnx_adapter", lora_A=A, lora_B=3 * B)
    path = tmp_path / "fr.onnx_adapter"
    run = OrtSession.run

    def change(session: OrtSession, outputs: Any, feeds: Any, adapters: Any) -> Any:
        values = run(session, outputs, feeds, adapters)
        if other.exists() and how == "renamed":
            other.rename(path)
        elif other.exists():
            path.write_bytes(other.read_bytes())
            other.unlink()
        return values

    monkeypatch.setattr(OrtSession, "run", change)
    applied = cli("apply", tmp_path / "m.yaml")
    assert applied.code == 0
    assert [row["y"] for row in written(tmp_path)] == wanted


def mixing_model(path: Path) -> None:
    """What the LoRA adds is of the mean over the batch: rows depend on each other with an adapter, and not without."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0], keepdims=1),
        helper.make_node("MatMul", ["mean", "lora_A"], ["low"]),
        helper.make_node("MatMul", ["low", "lora_B"], ["add"]),
        helper.make_node("Add", ["x", "add"], ["y"]),
    ]
    inputs: dict[str, tuple[int, Shape]] = {
        "x": (TensorProto.FLOAT, ["batch", 4]),
        "lora_A": (TensorProto.FLOAT, [4, "rank"]),
        "lora_B": (TensorProto.FLOAT, ["rank", 4]),
    }
    defaults = {"lora_A": np.zeros((4, 0), np.float32), "lora_B": np.zeros((0, 4), np.float32)}
    save_model(path, nodes, inputs, {"y": (TensorProto.FLOAT, ["batch", 4])}, defaults)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("languages", "good"),
    [
        (["de"] * 8, 8),
        (["de"] * 4 + ["fr"] * 4, 0),
        (["fr", "fr", "de", "de"] * 2, 0),
        (["de", "de", "de", "fr"], 4),
    ],
)
def test_rows_are_proven_with_each_set_of_adapters_that_rows_choose(
    cli: Cli, tmp_path: Path, languages: list[str], good: int
) -> None:
    """A run of one row with an adapter has nothing beside it, and needs no proof."""
    prepare(tmp_path, languages, size=4, part=4)
    mixing_model(tmp_path / "m.onnx")
    applied = cli("apply", tmp_path / "m.yaml", "-q")
    assert applied.code == (0 if good == len(languages) else 1), applied.out
    assert len(written(tmp_path)) == good
    assert good == len(languages) or "depend on the rows beside it" in " ".join(applied.out.split())
