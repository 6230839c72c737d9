"""Every number of a row reaches the model as it is in the file, or its row fails, whatever is in front of the model."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from pyarrow import parquet
from support.effort import effort
from support.json_texts import as_json
from support.models import save_model

from ortdeploy.cli.main import main
from ortdeploy.tensors.types import ELEMENT_TYPES, FLOATING, INTEGERS

Number = Any
"""A number as numpy has it."""

STEPS = {
    "nothing": [],
    "a step that keeps the type": ["do: flatten, in: {x: $a}, out: b"],
    "an operator": ["op: Identity, in: {input: $a}, out: b"],
    "a cast": ["do: cast, in: {x: $a, cast: TYPE}, out: b"],
    "a step and a cast": ["do: flatten, in: {x: $a}, out: c", "do: cast, in: {x: $c, cast: TYPE}, out: b"],
}
EDGES = [2**power + more for power in (7, 8, 11, 15, 16, 24, 31, 32, 53, 63, 64) for more in (-1, 0, 1)]
WHOLE = st.one_of(st.sampled_from(EDGES + [-edge for edge in EDGES]), st.integers(-(2**65), 2**65))
REAL = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.floats(-1000, 1000), st.floats(width=16))
NO_NUMBERS = ("inf", "-inf", "nan")
TEXTS = st.one_of(
    WHOLE.map(str),
    WHOLE.map(lambda number: f"{number}.0"),
    WHOLE.map(lambda number: f"{number}.9"),
    REAL.map(repr),
    st.tuples(st.integers(-99, 99), st.integers(-20, 420)).map(lambda pair: f"{pair[0]}e{pair[1]}"),
    st.sampled_from(["0.99999999999999999999", "1_0", "1e400", "-0.0", "1e-400", "0e41", "", "x", *NO_NUMBERS]),
)


def save(folder: Path, dtype: str, steps: Sequence[str], data: str) -> Path:
    """Write a model that gives what it takes, behind the steps; npz keeps the type of its results."""
    kind = int(TensorProto.DataType.Value(ELEMENT_TYPES[dtype].upper()))
    node = helper.make_node("Identity", ["x"], ["y"])
    shape: list[int | str | None] = ["batch", 1] if any("flatten" in step for step in steps) else ["batch"]
    save_model(folder / "m.onnx", [node], {"x": (kind, shape)}, {"y": (kind, shape)}, opset=21, ir_version=10)
    lines = [
        *(step.replace("TYPE", dtype) for step in steps),
        f"run: m, in: {{x: {'$b' if steps else '$a'}}}, out: {{y: y}}",
    ]
    written = "".join(f"      - {{{line}}}\n" for line in lines)
    (folder / "m.yaml").write_text(
        f"version: 1\nmodels: {{m: {{path: m.onnx}}}}\npipelines:\n  p:\n    steps:\n{written}    outputs: {{y: $y}}\n"
        f"jobs: {{run: {{pipeline: p, input: {{path: {data}, key: [row]}}, output: {{path: out, format: npz}}, "
        "errors: {max_failed: 100%}}}\n"
    )
    return folder / "m.yaml"


def results(folder: Path, rows: int) -> list[Number | None]:
    """What each row gave; None if it failed."""
    found: list[Number | None] = [None] * rows
    for part in (folder / "out").glob("part-*.npz"):
        with np.load(part) as arrays:
            for row, value in zip(arrays["row"], arrays["y"].reshape(-1), strict=True):
                found[row] = value
    return found


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp())
    yield made
    shutil.rmtree(made)


def run(folder: Path, dtype: str, steps: Sequence[str], data: str, rows: int) -> list[Number | None]:
    shutil.rmtree(folder / "out", ignore_errors=True)
    shutil.rmtree(folder / ".ortdeploy", ignore_errors=True)
    code = main(["apply", str(save(folder, dtype, steps, data)), "-q"])
    found = results(folder, rows)
    assert code == 0 or not any(one is not None for one in found)
    return found


def exact(text: str) -> Fraction | None:
    """Return the number that a text has; None if it is none."""
    try:
        return Fraction(text) if "_" not in text else None
    except ValueError:
        return None


def holds(dtype: str, number: Fraction) -> bool:
    """Return whether a type has a number, or one near it."""
    if dtype in FLOATING:
        with np.errstate(over="ignore"):
            return abs(number) < 2**1025 and bool(np.isfinite(np.array(as_float(number)).astype(dtype)))
    limits = np.iinfo(dtype)
    return number.denominator == 1 and limits.min <= number <= limits.max


def as_float(number: Fraction) -> float:
    try:
        return float(number)
    except OverflowError:
        return np.inf


EXAMPLES = settings(max_examples=effort(4, 60), deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.quick("csv-a step that keeps the type", "jsonl-a cast")
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@EXAMPLES
@given(dtype=st.sampled_from((*INTEGERS, *FLOATING)), texts=st.lists(TEXTS, min_size=1, max_size=12))
def test_numbers_of_text(folder: Path, kind: str, steps: str, dtype: str, texts: list[str]) -> None:
    if kind == "csv":
        content = "a,b\n" + "".join(f"{one},1\n" for one in texts)
    else:
        content = "".join(f'{{"a": {as_json(one)}}}\n' for one in texts)
    (folder / f"data.{kind}").write_text(content)
    for text, found in zip(texts, run(folder, dtype, STEPS[steps], f"data.{kind}", len(texts)), strict=True):
        if text in NO_NUMBERS and dtype in FLOATING:  # read where they are written
            assert found is not None, text
            assert np.array_equal(found, np.float64(text), equal_nan=True), (text, found)
            continue
        number = exact(text)
        assert (found is not None) == (number is not None and holds(dtype, number)), (text, found)
        if number is not None and found is not None:
            wanted = np.array(as_float(number) if dtype in FLOATING else int(number)).astype(dtype)
            assert found == wanted, text


@pytest.mark.quick("parquet-a cast", "npz-nothing")
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("kind", ["parquet", "npz"])
@EXAMPLES
@given(
    data=st.data(), given_type=st.sampled_from((*INTEGERS, *FLOATING)), taken=st.sampled_from((*INTEGERS, *FLOATING))
)
def test_numbers_of_arrays(
    folder: Path, kind: str, steps: str, data: st.DataObject, given_type: str, taken: str
) -> None:
    taken = taken if "cast" in steps else given_type
    numbers = np.array(data.draw(st.lists(of_type(given_type), min_size=1, max_size=12)), dtype=given_type)
    if kind == "npz":
        np.savez(folder / "data.npz", a=numbers)
    else:
        parquet.write_table(pa.table({"a": pa.array(numbers)}), folder / "data.parquet")
    for number, found in zip(numbers, run(folder, taken, STEPS[steps], f"data.{kind}", len(numbers)), strict=True):
        kept = Fraction(number.item())
        if taken in INTEGERS:  # a cast cuts decimals off what lies in the range
            limits = np.iinfo(taken)
            assert (found is not None) == (limits.min <= kept <= limits.max), (number, found)
            kept = Fraction(int(kept))
        else:
            assert (found is not None) == holds(taken, kept), (number, found)
        if found is not None:
            assert found == np.array(number if taken in FLOATING else int(kept)).astype(taken), number


def of_type(dtype: str) -> st.SearchStrategy[Number]:
    if dtype in FLOATING:
        width = {"float16": 16, "float32": 32, "float64": 64}[dtype]
        return st.floats(width=width, allow_nan=False, allow_infinity=False)  # type: ignore[arg-type]
    limits = np.iinfo(dtype)
    edges = [edge for edge in (*EDGES, *(-edge for edge in EDGES)) if limits.min <= edge <= limits.max]
    return st.one_of(st.sampled_from(edges), st.integers(int(limits.min), int(limits.max)))
