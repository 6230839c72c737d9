"""Every element type that ONNX Runtime runs goes in and comes out; sequences and maps come out as JSON lines."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from conftest import Cli
from onnx import TensorProto, helper
from support.models import save_model

from ortdeploy.tensors.conversion import convert
from ortdeploy.tensors.elements import numpy_dtype
from ortdeploy.tensors.types import ELEMENT_TYPES, WIDER

MANIFEST = """\
version: 1
models:
  m: {path: m.onnx}
jobs:
  run:
    model: m
    input: {path: INPUT}
    MORE
    output: {path: out, format: jsonl}
"""
VALUES = {"int2": [1, 0, -2, -1], "uint2": [0, 1, 2, 3], "int4": [-8, 7, 0, 1], "float8_e8m0fnu": [0.5, 1, 2, 4]}


def number(name: str) -> int:
    return int(TensorProto.DataType.Value(ELEMENT_TYPES[name].upper()))


def cast_model(path: Path, taken: str, given: str) -> None:
    """Return the same values in another type."""
    save_model(
        path,
        [helper.make_node("Cast", ["x"], ["y"], to=number(given))],
        {"x": (number(taken), ["batch", 2])},
        {"y": (number(given), ["batch", 2])},
        opset=25,
        ir_version=13,
    )


def rows(folder: Path) -> list[Any]:
    lines = [line for part in sorted((folder / "out").glob("part-*")) for line in part.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def apply(cli: Cli, folder: Path, data: str, more: str = "batch: {size: 3}") -> Any:
    (folder / "m.yaml").write_text(MANIFEST.replace("INPUT", data).replace("MORE", more))
    return cli("apply", folder / "m.yaml", "-q")


@pytest.mark.slow
@pytest.mark.parametrize("name", WIDER)
def test_types_that_numpy_does_not_have_are_read_from_text_and_written_as_numbers(
    cli: Cli, tmp_path: Path, name: str
) -> None:
    values = np.array([VALUES.get(name, [0, 1, 2, 3])] * 3, dtype=WIDER[name]).reshape(-1, 2)
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"x": row.tolist()}) + "\n" for row in values))
    cast_model(tmp_path / "m.onnx", name, "float32")
    assert apply(cli, tmp_path, "data.jsonl").code == 0
    assert [row["y"] for row in rows(tmp_path)] == values.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", WIDER)
def test_types_that_numpy_does_not_have_are_cast_from_arrays_and_come_out(cli: Cli, tmp_path: Path, name: str) -> None:
    values = np.array([VALUES.get(name, [0, 1, 2, 3])] * 3, dtype=np.float32).reshape(-1, 2)
    np.save(tmp_path / "data.npy", values)
    cast_model(tmp_path / "m.onnx", name, "float32")
    refused = apply(cli, tmp_path, "data.npy")
    assert refused.code == 1
    assert f"prepare: {{x: [{{cast: {name}}}]}}." in " ".join(refused.out.split())
    assert apply(cli, tmp_path, "data.npy", f"prepare: {{x: [{{cast: {name}}}]}}").code == 0
    assert [row["y"] for row in rows(tmp_path)] == values.tolist()


@pytest.mark.quick("bfloat16", "float8_e5m2", "uint4")
@pytest.mark.parametrize("name", WIDER)
def test_outputs_of_such_types_are_written_as_the_type_that_holds_them(cli: Cli, tmp_path: Path, name: str) -> None:
    values = np.array([VALUES.get(name, [0, 1, 2, 3])] * 3, dtype=np.float32).reshape(-1, 2)
    np.save(tmp_path / "data.npy", values)
    cast_model(tmp_path / "m.onnx", "float32", name)
    text = MANIFEST.replace("INPUT", "data.npy").replace("MORE", "batch: {size: 3}").replace("jsonl", "npz")
    (tmp_path / "m.yaml").write_text(text)
    assert cli("apply", tmp_path / "m.yaml", "-q").code == 0
    with np.load(tmp_path / "out/part-00000000.npz") as arrays:
        assert arrays["y"].dtype == WIDER[name]
        assert arrays["y"].tolist() == values.tolist()


def test_a_value_that_the_type_cannot_hold_fails_its_row_alone(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text('{"x": [1, 2]}\n{"x": [3, 8]}\n{"x": [-8, 7]}\n')
    cast_model(tmp_path / "m.onnx", "int4", "float32")
    assert apply(cli, tmp_path, "data.jsonl", "errors: {max_failed: 1}").code == 0
    assert [row["y"] for row in rows(tmp_path)] == [[1, 2], [-8, 7]]
    (failed,) = map(json.loads, (tmp_path / "out/_failed.jsonl").read_text().splitlines())
    assert failed["message"] == "x: 8 does not fit int4, which holds whole numbers from -8 to 7"


def test_infinities_and_nan_are_no_whole_numbers_and_are_floating_ones() -> None:
    for value in (np.nan, np.inf):
        with pytest.raises(ValueError, match="does not fit int4, which holds whole numbers from -8 to 7"):
            convert(np.array([value]), "int4")
    assert convert(np.array([np.inf, -np.inf]), "bfloat16").tolist() == [np.inf, -np.inf]
    assert np.isnan(convert(np.array([np.nan]), "float8_e4m3fn").astype(np.float32)).all()
    with pytest.raises(ValueError, match=r"465\.0 does not fit float8_e4m3fn, which holds numbers up to 448"):
        convert(np.array([465.0]), "float8_e4m3fn")
    assert numpy_dtype("string") == np.dtype(object)
    assert numpy_dtype("int4") == np.dtype(ml_dtypes.int4)


def test_init_writes_a_manifest_that_runs_for_such_a_model(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cast_model(tmp_path / "m.onnx", "bfloat16", "bfloat16")
    assert cli("init", "m.onnx").code == 0
    assert cli("apply", "m.yaml", "-q").code == 0


def zip_map_model(path: Path) -> None:
    """A classifier as scikit-learn's exporters write it: labels, and a sequence of maps, one for each row."""
    tree = helper.make_node(
        "LinearClassifier",
        ["x"],
        ["label", "raw"],
        domain="ai.onnx.ml",
        coefficients=[1.0, 0.0, 0.0, 1.0],
        intercepts=[0.0, 0.0],
        classlabels_strings=["left", "right"],
        multi_class=0,
        post_transform="NONE",
    )
    named = helper.make_node(
        "ZipMap", ["raw"], ["probabilities"], domain="ai.onnx.ml", classlabels_strings=["left", "right"]
    )
    maps = helper.make_sequence_type_proto(
        helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    )
    graph = helper.make_graph(
        [tree, named],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2])],
        [
            helper.make_tensor_value_info("label", TensorProto.STRING, ["batch"]),
            helper.make_value_info("probabilities", maps),
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


def test_a_classifiers_maps_are_written_row_by_row(cli: Cli, tmp_path: Path) -> None:
    zip_map_model(tmp_path / "m.onnx")
    (tmp_path / "data.csv").write_text("a,b\n3,1\n1,4\nbad,1\nnan,1\n2,2.5\n")
    text = MANIFEST.replace("INPUT", "data.csv, columns: {x: [a, b]}").replace(
        "MORE", "errors: {max_failed: 2, on_nan: fail}"
    )
    (tmp_path / "m.yaml").write_text(text)
    assert cli("apply", tmp_path / "m.yaml", "-q").code == 0
    failed = [json.loads(line) for line in (tmp_path / "out/_failed.jsonl").read_text().splitlines()]
    assert [(row["source"], row["code"]) for row in failed] == [
        ("data.csv:4", "not-a-number"),
        ("data.csv:5", "not-finite"),
    ]
    assert [row["probabilities"] for row in rows(tmp_path)] == [
        {"left": 3.0, "right": 1.0},
        {"left": 1.0, "right": 4.0},
        {"left": 2.0, "right": 2.5},
    ]


@pytest.mark.slow
def test_init_offers_a_classifiers_maps(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    zip_map_model(tmp_path / "m.onnx")
    assert cli("init", "m.onnx").code == 0
    assert cli("apply", "m.yaml", "-q").code == 0
    part = (tmp_path / "outbox/m/part-00000000.jsonl").read_text().splitlines()
    assert json.loads(part[0])["probabilities"].keys() == {"left", "right"}


def test_a_sequence_of_a_whole_run_belongs_to_a_row_that_is_one_run(cli: Cli, tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("SplitToSequence", ["x"], ["parts"], axis=0, keepdims=1)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])],
        [helper.make_tensor_sequence_value_info("parts", TensorProto.FLOAT, None)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    np.save(tmp_path / "data.npy", np.arange(6, dtype=np.float32).reshape(2, 3))
    refused = apply(cli, tmp_path, "data.npy", "batch: {size: 3}")
    assert "is a sequence of a whole run, not of each row; use batch: {size: none}" in " ".join(refused.out.split())
    assert apply(cli, tmp_path, "data.npy", "batch: {size: none}").code == 0
    assert [row["parts"] for row in rows(tmp_path)] == [[[0.0], [1.0], [2.0]], [[3.0], [4.0], [5.0]]]
