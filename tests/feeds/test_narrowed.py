"""Fed numbers that a provider cannot hold fail their row, or are told once."""

from typing import Any

import numpy as np
import pytest
from support.logs import capture_logs

from ortdeploy.feeds.narrowed import NarrowedCheck
from ortdeploy.plan.narrowed import Narrowed
from ortdeploy.tensors.columns import Array

HALF = Narrowed(limits=(-65504.0, 65504.0), smallest=0.0, fails=True, why="It computes in float16.")
INT32 = Narrowed(limits=(-(2.0**31), 2.0**31 - 1), smallest=0.0, fails=True, why="It computes with 32 bits.")
UINT32 = Narrowed(limits=(0.0, 2.0**32 - 1), smallest=0.0, fails=True, why="It computes with 32 bits.")
FLUSHED = Narrowed(limits=None, smallest=2.0**-126, fails=False, why="It may take them for zero.")


def array(dtype: str, values: list[Any]) -> Array:
    return np.array(values, dtype)


@pytest.mark.parametrize(
    ("narrowed", "values", "shown"),
    [
        (HALF, array("float32", [[1, 70000]]), "70000"),
        (HALF, array("float32", [[-65536, np.nan]]), "-65536"),
        (HALF, array("float64", [65505]), "65505"),
        (INT32, array("int64", [0, 2**31]), "2147483648"),
        (INT32, array("int64", [-(2**31) - 1]), "-2147483649"),
        (INT32, array("int64", [2**63 - 1]), str(2**63 - 1)),
        (UINT32, array("uint64", [2**64 - 1]), str(2**64 - 1)),
    ],
)
def test_a_number_beyond_the_format_is_named(narrowed: Narrowed, values: Array, shown: str) -> None:
    assert NarrowedCheck("input x", narrowed).problem(values) == f"input x has {shown}. {narrowed.why}"


@pytest.mark.parametrize(
    ("narrowed", "values"),
    [
        (HALF, array("float32", [65504, -65504, 0, 1e-30])),
        (HALF, array("float32", [np.inf, -np.inf, np.nan])),  # which float16 holds
        (HALF, np.zeros((0, 3), np.float32)),
        (INT32, array("int64", [2**31 - 1, -(2**31)])),
        (UINT32, array("uint64", [0, 2**32 - 1])),
        (FLUSHED, array("float32", [2.0**-126, -(2.0**-126), 0, np.nan, np.inf, 3e38])),
    ],
)
def test_numbers_that_the_format_holds_are_fed(narrowed: Narrowed, values: Array) -> None:
    with capture_logs() as logs:
        assert NarrowedCheck("input x", narrowed).problem(values) is None
    assert logs == []


def test_a_number_that_may_become_another_one_is_told_once() -> None:
    check = NarrowedCheck("input x", FLUSHED)
    with capture_logs() as logs:
        assert check.problem(array("float32", [1, 1e-40])) is None
        assert check.problem(array("float32", [2e-40])) is None
    reason = f"input x has 9.99995e-41. {FLUSHED.why}"
    assert logs == [{"event": "rows.narrowed", "log_level": "warning", "reason": reason}]
