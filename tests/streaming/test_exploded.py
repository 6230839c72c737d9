"""One line an item: in every format, over parts whose rows list nothing, failed rows, retries, and runs that end early."""

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from support.effort import effort
from support.fakes import FakeRuntime
from support.jobs import changed, execute, failed, plan_for, report, retrying, save

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.plan.steps import Plan
from ortdeploy.results.results import Status
from ortdeploy.sinks.catalogue import SINKS
from ortdeploy.streaming.exploded import as_lines, check_lists
from ortdeploy.tensors.columns import Array, Column

Line = tuple[int, int, float]
"""Its row, its item, and the first number of it."""


def read_json(path: Path) -> list[Line]:
    return [(one["row"], one["item"], one["y"][0]) for one in map(json.loads, path.read_text().splitlines())]


def read_csv(path: Path) -> list[Line]:
    with path.open() as file:
        return [(int(one["row"]), int(one["item"]), float(one["y.0"])) for one in csv.DictReader(file)]


def read_npz(path: Path) -> list[Line]:
    with np.load(path) as arrays:
        assert arrays["y"].shape[1:] == (2,)
        return list(zip(arrays["row"].tolist(), arrays["item"].tolist(), arrays["y"][:, 0].tolist(), strict=True))


def read_table(table: Any) -> list[Line]:
    return [(one["row"], one["item"], one["y"][0]) for one in table.to_pylist()]


READ: dict[str, Callable[[Path], list[Line]]] = {
    "jsonl": read_json,
    "csv": read_csv,
    "npz": read_npz,
    "parquet": lambda path: read_table(parquet.read_table(path)),
    "arrow": lambda path: read_table(pa.ipc.open_file(path).read_all()),
}


def items_of(value: float) -> Array:
    """Return what a row lists: as many items [value, place] as its number says, modulo 4."""
    count = int(abs(value)) % 4
    return np.array([[value, place] for place in range(count)], dtype=np.float32).reshape(count, 2)


def listing(feeds: Mapping[str, Array]) -> Mapping[str, Any]:
    return {"y": [items_of(value) for value in feeds["x"][:, 0]]}


def listing_positive(feeds: Mapping[str, Array]) -> Mapping[str, Any]:
    if (feeds["x"] < 0).any():
        raise OrtdeployError("negative")
    return listing(feeds)


def exploding(plan: Plan, kind: str = "jsonl") -> Plan:
    return changed(plan, output={"explode": ("y",), "row_shapes": ((None, 2),), "format": kind})


def lines(folder: Path, kind: str = "jsonl") -> list[Line]:
    return [line for path in sorted((folder / "out").glob("part-*")) for line in READ[kind](path)]


def expected(values: Sequence[float]) -> list[Line]:
    return [
        (row, item, value)
        for row, value in enumerate(values)
        if value >= 0
        for item, (value, _) in enumerate(items_of(value).tolist())
    ]


def test_every_format_that_has_columns_is_read() -> None:
    assert set(READ) | {"npy"} == set(SINKS)


@pytest.mark.parametrize("kind", READ)
@pytest.mark.parametrize("values", [list(range(19)), [0, 4, 8, 12, 0, 0, 0, 4, 1, 2, 0, 0], [0, 4, 8]])
def test_a_line_is_written_for_each_item(tmp_path: Path, kind: str, values: list[float]) -> None:
    save(tmp_path, values)
    result = execute(tmp_path, exploding(plan_for(tmp_path, len(values)), kind), FakeRuntime(listing))
    assert (result.status, result.committed) == (Status.DONE, len(values))
    assert lines(tmp_path, kind) == expected(values)
    assert len(list((tmp_path / "out").glob("part-*"))) == -(-len(values) // 8)
    assert report(tmp_path)["rows"]["committed"] == len(values)


@pytest.mark.slow
@pytest.mark.parametrize("kind", READ)
def test_lines_of_rows_that_pass_now_are_put_at_their_places(tmp_path: Path, kind: str) -> None:
    values: list[float] = [0, -1, -2, 3, 4, 5, 6, 7, -8, -9, -10, -11, -12, -13, -14, -15, 16, -17, 18]
    save(tmp_path, values)
    plan = exploding(plan_for(tmp_path, 19, max_failed=20), kind)
    assert execute(tmp_path, plan, FakeRuntime(listing_positive)).failed == 11
    assert lines(tmp_path, kind) == expected(values)
    result = execute(tmp_path, retrying(plan), FakeRuntime(listing))
    assert (result.status, result.committed, result.failed) == (Status.DONE, 19, 0)
    assert [(row, item, abs(value)) for row, item, value in lines(tmp_path, kind)] == expected([abs(v) for v in values])
    assert failed(tmp_path) == []


@settings(max_examples=effort(4, 8), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_interruptions_and_retries_leave_each_item_once(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    folder = tmp_path_factory.mktemp("run")
    values = [float(value) for value in data.draw(st.lists(st.integers(-9, 9), min_size=1, max_size=30))]
    save(folder, values)
    kind = data.draw(st.sampled_from(sorted(READ)))
    plan = exploding(plan_for(folder, len(values), max_failed=40), kind)
    calls = 0
    after = data.draw(st.integers(0, 6))

    def stopped() -> bool:
        nonlocal calls
        calls += 1
        return bool(calls > after)

    execute(folder, plan, FakeRuntime(listing_positive), stop=stopped)
    assert execute(folder, plan, FakeRuntime(listing_positive)).status in {Status.DONE, Status.NOTHING_TO_DO}
    assert lines(folder, kind) == expected(values)
    execute(folder, retrying(plan), FakeRuntime(listing))
    assert [(row, item, abs(value)) for row, item, value in lines(folder, kind)] == expected([abs(v) for v in values])


def test_what_is_not_exploded_stands_in_each_line_of_its_row() -> None:
    columns: dict[str, Column] = {
        "path": np.array(["a", "b", "c"], dtype=object),
        "name": ["x", "y", "z"],
        "whole": np.arange(6).reshape(3, 2),
        "scores": [np.array([1, 2]), np.zeros(0, np.int64), np.array([3])],
        "start": [np.array([0, 5]), np.zeros(0, np.int64), np.array([0])],
    }
    found = as_lines(columns, [4, 6, 7], ["scores", "start"])
    assert {name: np.asarray(column).tolist() for name, column in found.items()} == {
        "path": ["a", "a", "c"],
        "name": ["x", "x", "z"],
        "whole": [[0, 1], [0, 1], [4, 5]],
        "scores": [1, 2, 3],
        "start": [0, 5, 0],
        "row": [4, 4, 7],
        "item": [0, 1, 0],
    }


def test_columns_that_list_different_items_are_named() -> None:
    columns: dict[str, Column] = {"a": [np.zeros(2), np.zeros(3)], "b": np.zeros((2, 2))}
    with pytest.raises(ValueError, match="lists 3 items in a and 2 in b"):
        check_lists(columns, ["a", "b"])


@pytest.mark.parametrize("column", [np.zeros(2), np.array(["one", "two"], object), [{1: 0.25, 2: 0.75}, {}]])
def test_a_row_that_lists_nothing_at_all_is_named(column: Column) -> None:
    """Nor does a text list its letters, or the map of a classifier its classes without their scores."""
    with pytest.raises(ValueError, match="a is one value, and lists nothing"):
        check_lists({"a": column}, ["a"])


def test_a_row_whose_columns_list_different_items_fails_alone(tmp_path: Path) -> None:
    save(tmp_path, [1, 2, 3, 1])
    plan = changed(
        plan_for(tmp_path, 4, max_failed=1),
        fetch=("y", "z"),
        output={
            "columns": ("y", "z"),
            "dtypes": ("float32", "int64"),
            "explode": ("y", "z"),
            "row_shapes": ((None, 2), (None,)),
            "format": "jsonl",
        },
    )

    def apart(feeds: Mapping[str, Array]) -> Mapping[str, Any]:
        items = [items_of(value) for value in feeds["x"][:, 0]]
        return {"y": items, "z": [np.zeros(min(len(one), 2), np.int64) for one in items]}

    result = execute(tmp_path, plan, FakeRuntime(apart))
    assert (result.status, result.committed, result.failed) == (Status.DONE, 3, 1)
    assert [(row, item) for row, item, _ in lines(tmp_path)] == [(0, 0), (1, 0), (1, 1), (3, 0)]
    (row,) = failed(tmp_path)
    assert (row["row"], row["stage"], row["code"]) == (2, "postprocess", "explode")
    assert "lists 3 items in y and 2 in z" in row["message"]
