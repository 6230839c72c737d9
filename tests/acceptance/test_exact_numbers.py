"""The values of a row reach the model as they are written, or the row fails: none changes on the way, or behind it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli
from onnx import TensorProto, helper
from support.models import save_model

IDS = [16777217, 20000001, 33554435, 9007199254740993]
"""Whole numbers that float32 would round, and one that float64 would."""


def save_identity(folder: Path, dtype: str, shape: list[Any], name: str = "m") -> None:
    kind = int(TensorProto.DataType.Value(dtype))
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    save_model(folder / f"{name}.onnx", nodes, {"x": (kind, shape)}, {"y": (kind, shape)}, opset=21, ir_version=10)


def write_pipeline(folder: Path, *steps: str, data: str = "data.jsonl", more: str = "") -> Path:
    lines = "".join(f"      - {{{step}}}\n" for step in steps)
    text = f"""\
version: 1
models:
  m: {{path: m.onnx}}
pipelines:
  p:
    steps:
{lines}    outputs: {{y: $y}}
jobs:
  run:
    pipeline: p
    input: {{path: {data}}}
    {more or "batch: {size: 2}"}
    output: {{path: out, format: jsonl}}
"""
    (folder / "m.yaml").write_text(text)
    return folder / "m.yaml"


def results(folder: Path) -> list[Any]:
    parts = sorted((folder / "out").glob("part-*"))
    return [json.loads(line)["y"] for part in parts for line in part.read_text().splitlines()]


RUN = "run: m, in: {x: $e}, out: {y: y}"
CHAINS = {
    "a step that keeps the type": (["do: expand, in: {x: $a, expand: 0}, out: e"], [1, 4]),
    "several steps": (
        [
            "do: expand, in: {x: $a, expand: 0}, out: b",
            "do: flatten, in: {x: $b}, out: c",
            "do: tail, in: {x: $c, tail: 4}, out: e",
        ],
        [4],
    ),
    "a cast": (["do: cast, in: {x: $a, cast: int64}, out: e"], [4]),
    "steps and a cast": (
        ["do: flatten, in: {x: $a}, out: b", "do: cast, in: {x: $b, cast: int64}, out: e"],
        [4],
    ),
    "an operator": (["op: Neg, in: {X: $a}, out: b", "op: Neg, in: {X: $b}, out: e"], [4]),
    "a Cast of ONNX": (["op: Cast, in: {input: $a}, attributes: {to: int64}, out: e"], [4]),
    "the steps of each item": (
        [
            "each: $a, as: one, steps: [{do: expand, in: {x: $one, expand: 0}, out: f}], collect: {f: b}",
            "do: flatten, in: {x: $b}, out: e",
        ],
        [4],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("chain", CHAINS)
def test_whole_numbers_reach_a_model_through_the_steps_before_it(cli: Cli, tmp_path: Path, chain: str) -> None:
    steps, shape = CHAINS[chain]
    save_identity(tmp_path, "INT64", ["batch", *shape])
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"a": ids}) + "\n" for ids in (IDS, IDS[::-1], IDS)))
    done = cli("apply", write_pipeline(tmp_path, *steps, RUN), "-q")
    assert done.code == 0, done.err
    wrap = [IDS] if len(shape) > 1 else IDS
    assert results(tmp_path)[::2] == [wrap, wrap]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("prepare", ["[{expand: 0}, {expand: 0}]", "[{cast: int64}, {expand: 0}, {expand: 0}]"])
def test_whole_numbers_pass_the_prepare_steps_of_a_pipeline(cli: Cli, tmp_path: Path, kind: str, prepare: str) -> None:
    save_identity(tmp_path, "INT64", ["batch", 1, 1])
    text = "a\n" + "".join(f"{one}\n" for one in IDS) if kind == "csv" else "".join(f'{{"a": {one}}}\n' for one in IDS)
    (tmp_path / f"data.{kind}").write_text(text)
    step = "do: cast, in: {x: $a, cast: int64}, out: e"
    manifest = write_pipeline(tmp_path, step, RUN, data=f"data.{kind}", more=f"prepare: {{a: {prepare}}}")
    done = cli("apply", manifest, "-q")
    assert done.code == 0, done.err
    assert results(tmp_path) == [[[one]] for one in IDS]


def test_a_column_that_a_cast_and_a_computation_share_is_read_for_both(cli: Cli, tmp_path: Path) -> None:
    save_identity(tmp_path, "FLOAT", ["batch"])
    (tmp_path / "data.jsonl").write_text('{"a": 1.5}\n{"a": 3}\n')
    manifest = write_pipeline(
        tmp_path,
        "do: cast, in: {x: $a, cast: int64}, out: whole",
        "do: scale, in: {x: $a, scale: 2}, out: e",
        RUN,
    )
    assert cli("apply", manifest, "-q").code == 0
    assert results(tmp_path) == [3.0, 6.0]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_whole_number_whose_type_nothing_tells_is_not_rounded(cli: Cli, tmp_path: Path, kind: str) -> None:
    save_identity(tmp_path, "FLOAT", ["batch"])
    texts = ["16777216", "16777217", "0.1", "-33554433.0", "33554432.0", "6.02e23", "1e10", "16777217.5"]
    lines = [f"{one},1" if kind == "csv" else f'{{"a": {one}, "b": 1}}' for one in texts]
    (tmp_path / f"data.{kind}").write_text("\n".join([*(["a,b"] if kind == "csv" else []), *lines]))
    manifest = write_pipeline(
        tmp_path,
        "do: expand, in: {x: $a, expand: 0}, out: y",
        "run: m, in: {x: $b}, out: {y: other}",
        data=f"data.{kind}",
        more="errors: {max_failed: 2}",
    )
    assert cli("apply", manifest, "-q").code == 0
    kept = [texts[place] for place in (0, 2, 4, 5, 6, 7)]
    assert np.array_equal(np.array(results(tmp_path), np.float32)[:, 0], np.array(kept, np.float32))
    failed = [json.loads(line) for line in (tmp_path / "out/_failed.jsonl").read_text().splitlines()]
    assert [row["row"] for row in failed] == [1, 3]
    assert failed[0]["message"].endswith(
        "is not float32: float32 would round 16777217, and no step tells another type; cast the column to int64 or "
        "float64 first"
    )


def test_a_model_of_floating_numbers_takes_the_nearest_one(cli: Cli, tmp_path: Path) -> None:
    save_identity(tmp_path, "FLOAT", ["batch", 1])
    (tmp_path / "data.jsonl").write_text('{"a": 16777217}\n{"a": 0.1}\n')
    manifest = write_pipeline(tmp_path, "do: expand, in: {x: $a, expand: 0}, out: e", RUN)
    assert cli("apply", manifest, "-q").code == 0
    assert results(tmp_path) == [[16777216.0], [pytest.approx(0.1)]]


@pytest.mark.parametrize("kind", ["npz", "npy", "jsonl", "parquet"])
def test_text_that_a_format_would_shorten_fails_its_row(cli: Cli, tmp_path: Path, kind: str) -> None:
    save_identity(tmp_path, "STRING", ["batch"])
    texts = ["a\0", "b", "\0c", "\0"]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"x": one}) + "\n" for one in texts))
    text = "version: 1\nmodels: {m: {path: m.onnx}}\njobs: {run: {model: m, input: {path: data.jsonl}, "
    (tmp_path / "m.yaml").write_text(text + f"output: {{path: out, format: {kind}}}, errors: {{max_failed: 2}}}}}}\n")
    assert cli("apply", tmp_path / "m.yaml", "-q").code == 0
    if kind in {"jsonl", "parquet"}:
        assert not (tmp_path / "out/_failed.jsonl").read_text()
        return
    read = np.load(tmp_path / f"out/part-00000000.{kind}")
    assert (read["y"] if kind == "npz" else read).tolist() == ["b", "\0c"]
    failed = [json.loads(line) for line in (tmp_path / "out/_failed.jsonl").read_text().splitlines()]
    assert [(row["row"], row["code"]) for row in failed] == [(0, "unwritable-text"), (3, "unwritable-text")]


def test_a_key_that_a_format_would_shorten_fails_its_row(cli: Cli, tmp_path: Path) -> None:
    save_identity(tmp_path, "FLOAT", ["batch"])
    keys = ["a\0", "b", "c", "d"]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"x": 1, "k": one}) + "\n" for one in keys))
    text = "version: 1\nmodels: {m: {path: m.onnx}}\njobs: {run: {model: m, input: {path: data.jsonl, key: [k]}, "
    (tmp_path / "m.yaml").write_text(text + "output: {path: out, format: npz}, errors: {max_failed: 1}}}\n")
    assert cli("apply", tmp_path / "m.yaml", "-q").code == 0
    assert np.load(tmp_path / "out/part-00000000.npz")["k"].tolist() == keys[1:]
