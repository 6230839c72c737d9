"""Maps and sequences, as classifiers give them, in JSON lines, Parquet and Arrow; other formats refuse them in words."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pyarrow as pa
import pytest
from conftest import Cli
from onnx import TensorProto, helper
from pyarrow import parquet

MANIFEST = """\
version: 1
models: {{m: {{path: m.onnx{model}}}}}
jobs:
  run:
    model: m
    input: {{path: {data}, key: [row]}}
    batch: {{size: {batch}}}
    errors: {{max_failed: {failed}}}
    output: {{path: out, format: {format}, rows_per_part: 8}}
"""


def deploy(folder: Path, **said: Any) -> Path:
    settings = {"model": "", "data": "x.npy", "batch": 4, "failed": 0, "format": "jsonl"} | said
    (folder / "m.yaml").write_text(MANIFEST.format(**settings))
    return folder / "m.yaml"


def written(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of all parts, maps as dictionaries."""
    found: list[dict[str, Any]] = []
    for part in sorted((folder / "out").glob("part-*")):
        if part.suffix == ".jsonl":
            found += map(json.loads, part.read_text().splitlines())
            continue
        table = parquet.read_table(part) if part.suffix == ".parquet" else pa.ipc.open_file(part).read_all()
        found += table.to_pylist(maps_as_pydicts="strict")
    return found


def zip_map(path: Path, labels: dict[str, Any], key: int) -> None:
    """The values of x by label, as scikit-learn's converters end a classifier."""
    maps = helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    graph = helper.make_graph(
        [helper.make_node("ZipMap", ["x"], ["maps"], domain="ai.onnx.ml", **labels)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2])],
        [helper.make_value_info("maps", helper.make_sequence_type_proto(maps))],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(path))


KINDS: dict[str, tuple[dict[str, Any], int, Callable[[Any], Any]]] = {
    "text": ({"classlabels_strings": ["left", "right"]}, TensorProto.STRING, str),
    "numbers": ({"classlabels_int64s": [3, -7]}, TensorProto.INT64, int),
}


@pytest.mark.quick("jsonl-text", "parquet-numbers", "arrow-numbers")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["jsonl", "parquet", "arrow"])
def test_maps_are_written_row_by_row(cli: Cli, tmp_path: Path, form: str, kind: str) -> None:
    labels, key, read = KINDS[kind]
    zip_map(tmp_path / "m.onnx", labels, key)
    values = np.random.default_rng(1).normal(size=(21, 2)).astype(np.float32)
    np.save(tmp_path / "x.npy", values)
    assert cli("apply", deploy(tmp_path, format=form), "-q").code == 0
    (names,) = labels.values()
    rows = written(tmp_path)
    assert [{read(name): value for name, value in row["maps"].items()} for row in rows] == [
        dict(zip(names, map(float, row), strict=True)) for row in values
    ]
    assert len(list((tmp_path / "out").glob("part-*"))) == 3


@pytest.mark.parametrize("form", ["csv", "npz", "npy"])
def test_formats_without_maps_refuse_them_in_words(cli: Cli, tmp_path: Path, form: str) -> None:
    zip_map(tmp_path / "m.onnx", *KINDS["text"][:2])
    np.save(tmp_path / "x.npy", np.zeros((3, 2), np.float32))
    said = cli("plan", deploy(tmp_path, format=form), "--format", "json")
    assert said.code == 1
    details = [one["detail"] for one in said.json["diagnostics"] if one["rule"] == "unsupported-tensor"]
    assert details == [
        f'Output "maps" of model "m" is a sequence, which {form} cannot hold; use format: jsonl, parquet or arrow. '
        "Leave it out with columns:, or export it as a tensor: skl2onnx has options={'zipmap': False} for that."
    ]


def test_a_step_that_reads_maps_is_what_must_go(cli: Cli, tmp_path: Path) -> None:
    zip_map(tmp_path / "m.onnx", *KINDS["text"][:2])
    np.save(tmp_path / "x.npy", np.zeros((3, 2), np.float32))
    path = deploy(tmp_path, format="jsonl")
    path.write_text(path.read_text().replace("    output:", "    postprocess: [{argmax: maps, as: best}]\n    output:"))
    said = cli("plan", path, "--format", "json")
    (detail,) = [one["detail"] for one in said.json["diagnostics"] if one["rule"] == "unsupported-tensor"]
    assert "postprocess steps read tensors. Take that step away, or export it as a tensor" in detail


@pytest.mark.slow
def test_rows_that_were_repaired_take_their_maps_into_their_part(cli: Cli, tmp_path: Path) -> None:
    zip_map(tmp_path / "m.onnx", *KINDS["text"][:2])
    lines = [f'{{"x": [{row}, 0.5]}}' for row in range(10)]
    data = tmp_path / "x.jsonl"
    data.write_text("\n".join([*lines[:3], '{"x": [3, "?"]}', *lines[4:]]))
    path = deploy(tmp_path, format="parquet", data="x.jsonl", failed=1)
    assert cli("apply", path, "-q").code == 0
    assert len(written(tmp_path)) == 9
    data.write_text("\n".join([*lines[:3], '{"x": [3, 0.5]}', *lines[4:]]))
    done = cli("retry", path, "--job", "run", "-q")
    assert done.code == 0, done.err + done.out
    assert [row["maps"] for row in written(tmp_path)] == [{"left": float(row), "right": 0.5} for row in range(10)]


@pytest.mark.quick("lengths0-jsonl", "lengths1-parquet", "lengths2-arrow")
@pytest.mark.parametrize("form", ["jsonl", "parquet", "arrow"])
@pytest.mark.parametrize("lengths", [(3, 2, 0, 5), (0, 0, 3, 1), (0, 0)])
def test_sequences_of_any_length_are_lists(cli: Cli, tmp_path: Path, form: str, lengths: tuple[int, ...]) -> None:
    graph = helper.make_graph(
        [helper.make_node("SplitToSequence", ["x"], ["parts"], axis=0, keepdims=1)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_sequence_value_info("parts", TensorProto.FLOAT, None)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    rows = [{"x": [row + number / 8 for number in range(length)]} for row, length in enumerate(lengths)]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done = cli("apply", deploy(tmp_path, format=form, data="x.jsonl", batch="none"), "-q")
    assert done.code == 0, done.err + done.out
    assert [row["parts"] for row in written(tmp_path)] == [[[value] for value in row["x"]] for row in rows]


def by_hand(folder: Path, values: np.ndarray) -> list[list[Any]]:
    session = onnxruntime.InferenceSession(folder / "m.onnx")
    labels, maps = session.run(None, {session.get_inputs()[0].name: values})
    return [[label, probabilities] for label, probabilities in zip(labels.tolist(), maps, strict=True)]


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
@pytest.mark.parametrize("exporter", ["skl2onnx", "onnxmltools"])
def test_exported_classifiers_give_what_they_give_by_hand(cli: Cli, tmp_path: Path, form: str, exporter: str) -> None:
    exporters = pytest.importorskip(exporter)
    from sklearn.datasets import load_iris  # noqa: PLC0415
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415

    values, classes = load_iris(return_X_y=True)
    values = values.astype(np.float32)
    if exporter == "skl2onnx":
        names = np.array(["setosa", "versicolor", "virginica"])[classes]
        model, declared = exporters.to_onnx(LogisticRegression(max_iter=500).fit(values, names), values[:1]), ""
    else:
        lightgbm = pytest.importorskip("lightgbm")
        trees = lightgbm.LGBMClassifier(n_estimators=5, verbose=-1).fit(values, classes)
        kinds = [("input", exporters.convert.common.data_types.FloatTensorType([None, 4]))]
        model = exporters.convert_lightgbm(trees, initial_types=kinds, target_opset=15)
        declared = ", outputs: {label: {row_axis: 0}}"  # the converter writes [1]
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    np.save(tmp_path / "x.npy", values)
    done = cli("apply", deploy(tmp_path, format=form, model=declared), "-q")
    assert done.code == 0, done.err + done.out
    rows = [[label, maps] for _, label, maps in (row.values() for row in written(tmp_path))]
    for (label, maps), (own_label, own_maps) in zip(rows, by_hand(tmp_path, values), strict=True):
        assert label == own_label
        assert {str(name): value for name, value in maps.items()} == pytest.approx(
            {str(name): value for name, value in own_maps.items()}, rel=1e-5
        )
