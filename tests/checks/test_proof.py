"""A golden data set that any session passes proves nothing, and says so."""

from typing import Any

import numpy as np
import pytest

from ortdeploy.checks.golden import GoldenSet
from ortdeploy.checks.proof import why_not_proven
from ortdeploy.tensors.tolerances import TOLERANCES

WITHIN = {"": TOLERANCES["float32"]}
NAN = float("nan")
X = np.array([[1, 2], [3, 4]], np.float32)
EQUAL_INPUTS = "all values that are fed were equal"
EQUAL_RESULTS = "all results were equal, or differed by less than the comparison allows"


def why(given: Any, fed: Any = X) -> str | None:
    return why_not_proven(GoldenSet(inputs={"x": fed} if fed is not None else {}, outputs={"y": given}), WITHIN)


@pytest.mark.parametrize(
    "fed",
    [
        np.zeros((2, 3), np.float32),
        np.full((2, 3), 7, np.int64),
        np.array([0], np.float32),
        np.array(["", ""], object),
        np.zeros((0, 3), np.float32),
        [np.zeros(2, np.float32), np.zeros(3, np.float32)],
    ],
)
def test_inputs_that_are_all_equal_prove_nothing(fed: Any) -> None:
    assert why(X, fed) == EQUAL_INPUTS


@pytest.mark.parametrize(
    "given",
    [
        np.zeros((2, 3), np.float32),
        np.full((2, 3), NAN, np.float16),
        np.array([NAN, 0], np.float32),
        np.array([100, 100.05], np.float32),
        np.array([1e-6], np.float32),
        np.array([0]),
        np.array([3, 3]),
        {"a": 0.0, "b": 0.0},
        None,
    ],
)
def test_results_that_are_all_equal_prove_nothing(given: Any) -> None:
    assert why(given) == EQUAL_RESULTS


@pytest.mark.parametrize(
    ("fed", "given"),
    [
        (X, X),
        (None, X),
        (np.array([0.5]), np.array([7.0])),
        (np.array(3), np.array([3])),
        (np.array(["word"], object), np.array(["label"], object)),
        (np.array([[0, 0], [0, 1]]), np.array([0, 0.1])),
        (X, np.array([NAN, 7], np.float32)),
        (X, np.array([False, True])),
        (X, {"a": 0.25, "b": 0.75}),
        ([X, X[:1]], [np.array([1, 2])]),
    ],
)
def test_what_differs_from_each_other_or_alone_from_zero_is_a_proof(fed: Any, given: Any) -> None:
    assert why(given, fed) is None


def test_one_input_and_one_output_that_tell_are_enough() -> None:
    mask, empty = np.ones((2, 2), np.int64), np.zeros(2, np.float32)
    golden = GoldenSet(inputs={"x": X, "mask": mask}, outputs={"y": X, "other": empty})
    assert why_not_proven(golden, WITHIN) is None


def test_the_tolerance_of_an_output_decides_what_differs() -> None:
    golden = GoldenSet(inputs={"x": X}, outputs={"y": X})
    assert why_not_proven(golden, {**WITHIN, "y": (0.0, 3.0)}) == EQUAL_RESULTS
    assert why_not_proven(golden, {**WITHIN, "y": (0.0, 2.0)}) is None
