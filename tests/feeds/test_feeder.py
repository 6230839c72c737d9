"""The feeder turns columns into the tensors of runs, and lets nothing through that the plan does not allow."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.effort import effort
from support.jobs import changed_job, plan_for

from ortdeploy.feeds import row_sources
from ortdeploy.feeds.feeder import Feeder, cut, padded
from ortdeploy.plan.adapters import PlannedAdapters
from ortdeploy.plan.steps import PlannedStep, RunJob
from ortdeploy.results.rows import Block, StageError
from ortdeploy.tensors.columns import Array, Column
from ortdeploy.tensors.types import ROWS

VALUES = np.arange(20, dtype=np.float32).reshape(10, 2)
"""The rows of a block, float32 [10, 2]."""


@pytest.fixture(scope="module")
def job() -> RunJob:
    """A job of batches of four rows, float32 [batch, 2]."""
    (step,) = [one for one in plan_for(Path("/nowhere"), 10).steps if isinstance(one, RunJob)]
    return step


def block(columns: Mapping[str, Column], rows: Sequence[int] = range(10), count: int = 10) -> Block:
    return Block(start=0, count=count, rows=rows, columns=dict(columns), failed=[])


def with_input(job: RunJob, **changes: Any) -> RunJob:
    (only,) = job.inputs
    return replace(job, inputs=(replace(only, **changes),))


def refusal(job: RunJob, columns: Mapping[str, Column]) -> tuple[str, str]:
    """The stage and the code with which the rows of a block are refused, as a block and as a batch."""
    feeder, whole = Feeder(job), block(columns, range(len(next(iter(columns.values())))))
    assert feeder.prepare_block(whole) is None
    with pytest.raises(StageError) as caught:
        feeder.prepare_batch(whole, whole.rows)
    return caught.value.stage, caught.value.code


def test_a_block_is_prepared_once_and_cut_into_batches(job: RunJob) -> None:
    feeder, whole = Feeder(job), block({"array": VALUES})
    feeds = feeder.prepare_block(whole)
    assert feeds is not None
    batches = cut(whole, 4)
    assert [len(rows) for rows in batches] == [4, 4, 2]
    for rows in batches:
        taken = feeder.cut_batch(feeds, rows)["x"]
        np.testing.assert_array_equal(taken, VALUES[rows.start : rows.stop])
        np.testing.assert_array_equal(taken, feeder.prepare_batch(whole, rows)["x"])


@given(st.sets(st.integers(0, 40), min_size=1), st.integers(1, 9))
@settings(max_examples=effort(20, 300), deadline=None)
def test_batches_are_those_of_the_input_without_failed_rows(rows: set[int], size: int) -> None:
    present = sorted(rows)
    batches = cut(block({}, present, 41), size)
    assert [place for batch in batches for place in batch] == list(range(len(present)))
    assert all(len({present[place] // size for place in batch}) == 1 for batch in batches)


def test_what_steps_take_for_a_while_is_told_of_the_rows_that_were_prepared_last(job: RunJob) -> None:
    step = PlannedStep(
        name="resize",
        options={"resize": [2, 2], "sampling": "opencv", "method": "area"},
        results=(),
        dtype="uint8",
        shape=(ROWS, None, None, 3),
        layout="NHWC",
    )
    feeder = Feeder(with_input(job, steps=(step,), dtype="uint8", shape=("batch", 2, 2, 3)))
    for side in (20, 10):
        feeder.prepare_batch(block({"array": np.zeros((3, side, side, 3), np.uint8)}), range(3))
        assert feeder.scratch == 3 * 8 * side * side * 3, "for one row at a time"


def test_a_row_that_a_step_does_not_take_is_refused_in_the_words_of_its_contract(job: RunJob) -> None:
    """What the step takes for a while is asked of no such row: a picture without channels has no third size."""
    step = PlannedStep(
        name="resize",
        options={"resize": [2, 2]},
        results=(),
        dtype="uint8",
        shape=(ROWS, None, None, None),
        layout="NHWC",
    )
    resized = with_input(job, steps=(step,), dtype="uint8", shape=("batch", 2, 2, 3))
    for shape in ((3, 5, 5), (3, 0, 5, 3), (3, 5, 5, 0), (3,)):
        assert refusal(resized, {"array": np.zeros(shape, np.uint8)}) == ("prepare", "resize")


def test_a_short_batch_is_filled_up_with_its_last_row(job: RunJob) -> None:
    padding = changed_job(job, batching={"last": "pad"})
    fed = Feeder(padding).prepare_batch(block({"array": VALUES}), [8, 9])["x"]
    np.testing.assert_array_equal(fed, VALUES[[8, 9, 9, 9]])
    assert padded({"x": VALUES}, 4)["x"] is VALUES, "longer ones stay as they are"


def test_a_run_that_got_smaller_is_filled_up_to_its_new_size(job: RunJob) -> None:
    feeder = Feeder(changed_job(job, batching={"last": "pad"}))
    feeder.reduce_batch_size(3)
    assert feeder.prepare_batch(block({"array": VALUES}), [9])["x"].shape == (3, 2)


def test_a_model_without_an_axis_of_rows_gets_one_row(job: RunJob) -> None:
    feeder = Feeder(with_input(changed_job(job, batching={"size": None}), shape=(2,)))
    assert feeder.prepare_block(block({"array": VALUES})) is None
    np.testing.assert_array_equal(feeder.prepare_batch(block({"array": VALUES}), [3])["x"], VALUES[3])
    with pytest.raises(StageError, match="one by one"):
        feeder.prepare_batch(block({"array": VALUES}), [3, 4])


def test_several_columns_are_one_vector(job: RunJob) -> None:
    stacked = with_input(job, columns=("a", "b"), stacked=True)
    fed = Feeder(stacked).prepare_batch(block({"a": VALUES[:, 0], "b": VALUES[:, 1]}), range(10))
    np.testing.assert_array_equal(fed["x"], VALUES)
    assert refusal(stacked, {"a": VALUES[:, 0], "b": VALUES}) == ("contract", "ragged-rows")
    for kind in (np.int64, np.uint64):
        ids = np.full(10, 2**53, kind)
        assert refusal(stacked, {"a": VALUES[:, 0], "b": ids}) == ("contract", "element-type")  # a cast is asked for
        assert refusal(stacked, {"a": VALUES[:, 0], "b": ids + kind(1)}) == ("contract", "rounded")


@pytest.mark.parametrize(
    ("changes", "column", "code"),
    [
        ({}, VALUES.astype(np.float64), "element-type"),
        ({}, VALUES.reshape(5, 4), "shape"),
        ({}, [VALUES[0], VALUES[:2]], "ragged-rows"),
        ({"limits": (0.0, 5.0)}, VALUES, "range"),
        ({"limits": (0.0, 50.0)}, np.full((2, 2), np.nan, np.float32), "range"),
    ],
)
def test_what_does_not_fit_is_refused(job: RunJob, changes: dict[str, Any], column: Column, code: str) -> None:
    assert refusal(with_input(job, **changes), {"array": column}) == ("contract", code)


def test_a_symbol_is_one_number_in_all_inputs_of_a_run(job: RunJob) -> None:
    (x,) = job.inputs
    inputs = (replace(x, shape=("batch", "n")), replace(x, name="mask", columns=("mask",), shape=("batch", "n")))
    several = replace(job, inputs=inputs)
    fed = Feeder(several).prepare_batch(block({"array": VALUES, "mask": VALUES}), range(4))
    assert set(fed) == {"x", "mask"}
    assert refusal(several, {"array": VALUES, "mask": VALUES[:, :1]}) == ("contract", "shape")


def test_a_step_that_fails_is_named(job: RunJob) -> None:
    step = PlannedStep(
        name="scale", options={"scale": 2.0}, dtype="float32", shape=("batch", 2), layout=None, results=()
    )
    scaled = with_input(job, steps=(step,))
    np.testing.assert_array_equal(
        Feeder(scaled).prepare_batch(block({"array": VALUES}), range(10))["x"], VALUES * np.float32(2)
    )
    assert refusal(scaled, {"array": np.array(["a", "b"], dtype=object)}) == ("prepare", "scale")


def test_an_adapter_is_chosen_by_the_text_of_a_row(job: RunJob) -> None:
    adapters = PlannedAdapters(names=("fr", "it"), column="language", mapping={"fr": "fr", "it": "it"})
    feeder = Feeder(replace(job, adapters=adapters))
    languages = block({"language": ["it", "de"]})
    assert feeder.adapters(languages, 0) == ("it",)
    with pytest.raises(StageError, match='no adapter is meant for language "de"') as caught:
        feeder.adapters(languages, 1)
    assert caught.value.code == "no-adapter"


def test_rows_are_finite_if_all_their_floats_are(job: RunJob) -> None:
    values = VALUES[:4].copy()
    values[1, 0], values[2, 1] = np.nan, np.inf
    feeds: dict[str, Array] = {"x": values, "ids": np.arange(4)}
    assert Feeder(job).finite_rows(feeds, 3).tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("limits", "patterns", "processes"),
    [
        ({}, ("in/*.png",), 3),
        ({"threads": 2}, ("in/*.png",), 1),
        ({"threads": 1}, ("in/*.png",), 0),
        ({"memory": 1 << 30}, ("in/*.png",), 0),  # it is this process's
        ({}, ("in/*.png", "s3://store/*.png"), 0),
    ],
)
def test_other_processes_may_decode_files_of_this_machine_within_the_limits(
    job: RunJob, monkeypatch: pytest.MonkeyPatch, limits: dict[str, Any], patterns: tuple[str, ...], processes: int
) -> None:
    monkeypatch.setattr(row_sources, "usable_cores", lambda: 4)
    job = replace(job, input=replace(job.input, patterns=patterns), limits=replace(job.limits, **limits))
    assert row_sources.wanted_here(job).processes == processes
