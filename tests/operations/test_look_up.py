"""Numbers of texts by a table, against Python's own dict and csv."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli, read_rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.effort import effort
from support.models import scale_model

from ortdeploy.operations.catalogue import OPERATIONS
from ortdeploy.operations.look_up import read
from ortdeploy.tensors.types import ROWS, TensorType


def look_up(texts: list[str], path: Path, **options: Any) -> np.ndarray:
    options = {"table": str(path), **options}
    types = {"x": TensorType("string", (ROWS,))}
    (promised,) = OPERATIONS["look_up"].infer(options, types)
    (made,) = OPERATIONS["look_up"].build(options, types)({"x": np.array(texts, dtype=object)})
    assert isinstance(made, np.ndarray)
    assert (promised.dtype, promised.shape) == (made.dtype.name, (ROWS,))
    return made


TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=5)


@settings(max_examples=effort(40, 1000), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    table=st.dictionaries(TEXTS, st.floats(-1e6, 1e6, width=32), min_size=1),
    header=st.booleans(),
    mark=st.booleans(),
    data=st.data(),
)
def test_numbers_are_those_of_the_table(
    tmp_path: Path, table: dict[str, float], header: bool, mark: bool, data: st.DataObject
) -> None:
    path = tmp_path / "t.csv"
    with path.open("w", newline="", encoding="utf-8-sig" if mark else "utf-8") as file:
        writer = csv.writer(file)
        writer.writerows([("device", "limit")] * header)
        writer.writerows(table.items())
    texts = data.draw(st.lists(st.one_of(st.sampled_from(sorted(table)), TEXTS), min_size=1))
    dtype = data.draw(st.sampled_from(["float32", "float64"]))
    found = look_up(texts, path, otherwise=0.7, dtype=dtype)
    np.testing.assert_array_equal(found, np.array([table.get(text, 0.7) for text in texts], dtype))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no line with a text and a number"),
        ("device,limit\n", "no line with a text and a number"),
        ("a,1\nb\n", "its line 'b' has 1 cells"),
        ("a,1\nb,x\n", "'x' of 'b' is no number"),
        ("a,1\nb,nan\n", "'nan' of 'b' is no number"),
        ("a,nan\nb,1\n", "'nan' of 'a' is no number"),
        ("a,1\nb,1e400\n", "'1e400' of 'b' is no number"),
        ("a,1\nb,\uff12\n", "of 'b' is no number"),
        ("a,1\na,2\n", "'a' is in it twice"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(ValueError, match=message):
        read(str(tmp_path / "t.csv"))


@pytest.mark.parametrize(("number", "dtype"), [("1e39", "float32"), ("-65520", "float16")])
def test_a_number_that_the_type_does_not_hold_fails_its_row(tmp_path: Path, number: str, dtype: str) -> None:
    (tmp_path / "t.csv").write_text(f"a,{number}\nb,2\nc,inf\n")
    np.testing.assert_array_equal(look_up(["b", "c"], tmp_path / "t.csv", dtype=dtype), [2, np.inf])
    with pytest.raises(ValueError, match=f"the number of 'a', is too large for {dtype}"):
        look_up(["a"], tmp_path / "t.csv", dtype=dtype)


MANIFEST = """\
version: 1
models: {m: {path: m.onnx}}
pipelines:
  alarm:
    steps:
      - {run: m, in: {x: $x}, out: {y: y}}
      - {do: squeeze, in: {x: $y, squeeze: 0}, out: risk}
      - {do: look_up, in: {x: $device, table: limits.csv}, out: limit}
      - {op: GreaterOrEqual, in: {A: $risk, B: $limit}, out: alarm}
    outputs: {limit: $limit, alarm: $alarm}
jobs:
  run:
    pipeline: alarm
    input: {path: "*.csv", columns: {x: [x], device: device}, key: [device]}
    output: {path: out}
    errors: {max_failed: 1}
"""


def test_each_device_has_its_limit(tmp_path: Path, cli: Cli) -> None:
    scale_model(tmp_path / "m.onnx", width=1, factor=1.0)
    (tmp_path / "m.yaml").write_text(MANIFEST.replace("*.csv", "d.csv"))
    (tmp_path / "limits.csv").write_text("device,limit\npump1,0.7\npump2,0.5\n")
    (tmp_path / "d.csv").write_text("device,x\npump1,0.7\npump2,0.4\npump3,9\npump2,0.6\n")
    done = cli("apply", tmp_path / "m.yaml")
    assert done.code == 0, done.words
    rows = [(row["device"], row["alarm"]) for row in read_rows(tmp_path / "out")]
    assert rows == [("pump1", True), ("pump2", False), ("pump2", True)]
    assert "'pump3' is not in" in (tmp_path / "out/_failed.jsonl").read_text()
    (tmp_path / "limits.csv").write_text("pump1,high\npump2\n")
    refused = cli("plan", tmp_path / "m.yaml")
    assert refused.code == 1
    assert "limits.csv" in refused.words
    assert "its line 'pump2' has 1 cells" in refused.words
