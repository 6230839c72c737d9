"""What a file holds reaches the output as it is: keys, pictures, recordings and results, in every format."""

import datetime as dt
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow as pa
import pytest
import yaml
from conftest import Cli
from onnx import TensorProto, helper
from pyarrow import parquet

TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "int64": TensorProto.INT64}


def identity(path: Path, kind: str = "float32", shape: Sequence[int | str] = ()) -> None:
    values = [helper.make_tensor_value_info(name, TYPES[kind], ["batch", *shape]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, str(path))


def apply(cli: Cli, folder: Path, code: int = 0, **job: Any) -> str:
    """Apply a job, and return what it printed."""
    job = {"model": "m", "output": {"path": "out"}, **job}
    document = {"version": 1, "models": {"m": {"path": "m.onnx"}}, "jobs": {"j": job}}
    (folder / "m.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    found = cli("apply", folder / "m.yaml", "-q")
    assert found.code == code, found.out + found.err
    return str(found.out + found.err)


def lines(folder: Path) -> list[dict[str, Any]]:
    parts = sorted((folder / "out").glob("part-*.jsonl"))
    return [json.loads(line) for part in parts for line in part.read_text().splitlines()]


def failed(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "out/_failed.jsonl").read_text().splitlines()]


FED = [0.4, 2**53 + 1, -0.0]


def write(path: Path) -> list[Any]:
    """Write a column x of numbers that float32 does not hold, and return what a key of it is to be."""
    if path.suffix == ".csv":
        path.write_text("x\n" + "".join(f"{value}\n" for value in FED))
        return list(map(str, FED))
    if path.suffix == ".jsonl":
        path.write_text("".join(f'{{"x": {value}}}\n' for value in FED))
        return FED
    doubles = np.array([0.4, 2**53 - 1, -0.0])
    if path.suffix == ".parquet":
        parquet.write_table(pa.table({"x": doubles}), path)
    elif path.suffix == ".arrow":
        with pa.ipc.new_file(str(path), pa.schema({"x": pa.float64()})) as file:
            file.write_table(pa.table({"x": doubles}))
    else:
        np.savez(path, x=doubles)
    return list(doubles.tolist())


@pytest.mark.quick("csv", "jsonl", "parquet")
@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "arrow", "npz"])
def test_a_key_that_is_fed_too_is_what_its_file_has(cli: Cli, tmp_path: Path, suffix: str) -> None:
    identity(tmp_path / "m.onnx")
    keys = write(tmp_path / f"a.{suffix}")
    apply(cli, tmp_path, input={"path": f"a.{suffix}", "key": ["x"]}, prepare={"x": [{"cast": "float32"}]})
    assert [row["x"] for row in lines(tmp_path)] == keys
    assert [row["y"] for row in lines(tmp_path)] == np.array(keys, np.float32).tolist()


def test_a_byte_order_mark_is_no_part_of_the_first_line(cli: Cli, tmp_path: Path) -> None:
    text_model(tmp_path / "m.onnx")
    (tmp_path / "a.txt").write_bytes("\ufeffhello\n\ufeffworld\n".encode())
    apply(cli, tmp_path, input={"path": "a.txt"})
    assert [row["y"] for row in lines(tmp_path)] == ["hello", "\ufeffworld"]


def text_model(path: Path) -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.STRING, ["batch"]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), str(path))


def keys_of(cli: Cli, folder: Path, form: str, *keys: str, max_failed: int = 0) -> list[Any]:
    """Run rows with these keys, as JSON has them, into a format; return the keys that come out."""
    identity(folder / "m.onnx")
    (folder / "a.jsonl").write_text("".join(f'{{"x": 1, "k": {key}}}\n' for key in keys))
    output = {"path": "out", "format": form}
    apply(cli, folder, input={"path": "a.jsonl", "key": ["k"]}, output=output, errors={"max_failed": max_failed})
    (part,) = (folder / "out").glob("part-*")
    if form == "npz":
        with np.load(part) as arrays:
            return list(arrays["k"].tolist())
    if form == "csv":
        return [line.split(",")[0] for line in part.read_text().splitlines()[1:]]
    if form == "parquet":
        return list(parquet.read_table(part)["k"].to_pylist())
    return [row["k"] for row in lines(folder)]


@pytest.mark.parametrize(
    "keys",
    [
        ("1", f"{2**53 + 1}", f"{2**63 + 1}"),
        (f"{2**53 + 1}", "-1"),
        ("1", "2.5"),
        ("true", "false"),
        ('"a"', '"\\ud800"'),
    ],
)
def test_npz_keeps_keys_to_the_digit(cli: Cli, tmp_path: Path, keys: Sequence[str]) -> None:
    assert keys_of(cli, tmp_path, "npz", *keys) == [json.loads(key) for key in keys]


@pytest.mark.parametrize(
    ("form", "keys", "why"),
    [
        ("npz", ("1", "null", "3"), 'key "k" is null, which npz loses; use another format'),
        ("csv", ('"a"', '"\\ud800"', '"c"'), 'key "k" is text with half of a surrogate pair, which csv loses'),
        (
            "parquet",
            ('"a"', '"x\\udfffy"', '"c"'),
            'key "k" is text with half of a surrogate pair, which parquet loses',
        ),
    ],
)
def test_a_key_that_the_format_has_no_value_for_fails_its_row(
    cli: Cli, tmp_path: Path, form: str, keys: Sequence[str], why: str
) -> None:
    have = keys_of(cli, tmp_path, form, *keys, max_failed=1)
    assert have == [json.loads(keys[0]), json.loads(keys[2])]
    (row,) = failed(tmp_path)
    assert why in row["message"]


def test_times_of_int96_beyond_nanoseconds_are_refused_and_do_not_wrap(cli: Cli, tmp_path: Path) -> None:
    identity(tmp_path / "m.onnx")
    for year, code in ((2262, 0), (1677, 1), (2999, 1)):
        times = [dt.datetime(2020, 1, 1, 0, 0, 0, 1), None, dt.datetime(year, 1, 1)]  # noqa: DTZ001
        table = pa.table({"x": np.zeros(3, np.float32), "k": pa.array(times, pa.timestamp("us"))})
        parquet.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
        text = apply(cli, tmp_path, code, input={"path": "a.parquet", "key": ["k"]})
        if code:
            assert f"row 2: k is {year}-01-01" in " ".join(text.split())
        else:
            assert [row["k"] for row in lines(tmp_path)] == [
                "2020-01-01 00:00:00.000001",
                None,
                f"{year}-01-01 00:00:00",
            ]
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        shutil.rmtree(tmp_path / ".ortdeploy", ignore_errors=True)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("filler", [0, "nan"])
def test_what_fills_a_gap_is_fed_and_not_carried(cli: Cli, tmp_path: Path, suffix: str, filler: Any) -> None:
    path = tmp_path / f"a.{suffix}"
    if suffix == "csv":
        path.write_text("x,z\n1.5,\n,\n")
    elif suffix == "jsonl":
        path.write_text('{"x": 1.5}\n{"x": null}\n')
    else:
        parquet.write_table(pa.table({"x": pa.array([1.5, None], pa.float32())}), path)
    identity(tmp_path / "m.onnx")
    apply(cli, tmp_path, input={"path": path.name, "key": ["x"], "missing": {"x": filler}})
    found = lines(tmp_path)
    assert [row["x"] for row in found] == (["1.5", ""] if suffix == "csv" else [1.5, None])
    assert [row["y"] for row in found] == [1.5, 0.0 if filler == 0 else None]
