"""Outputs are compared with golden ones: which values are equal, with NaN and every element type."""

import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ortdeploy.checks.golden import difference, write_outputs
from ortdeploy.diagnostics import OrtdeployError


@pytest.mark.parametrize(
    ("value", "expected", "passes"),
    [
        (np.array([1, np.nan, np.inf], np.float32), np.array([1, np.nan, np.inf], np.float32), True),
        (np.array([1, np.inf], np.float32), np.array([1, -np.inf], np.float32), False),
        (np.array([np.nan], np.float32), np.array([1], np.float32), False),
        (np.array([1], np.float32), np.array([np.nan], np.float32), False),
        (np.array([1], np.float32), np.array([1], np.float64), False),
        (np.array([[1]], np.float32), np.array([1], np.float32), False),
        (np.array([np.nan], ml_dtypes.bfloat16), np.array([np.nan], ml_dtypes.bfloat16), True),
        (np.array([np.nan], ml_dtypes.float8_e5m2), np.array([np.nan], ml_dtypes.float8_e5m2), True),
        (np.array([1], ml_dtypes.bfloat16), np.array([2], ml_dtypes.bfloat16), False),
        (np.array([True]), np.array([False]), False),
        (np.array(["a"], object), np.array(["a"], object), True),
        (np.array([1 + 1j], np.complex64), np.array([1 + 1j], np.complex64), True),
        (np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32), True),
        (np.array([2**62], np.int64), np.array([2**62 + 1], np.int64), False),
    ],
)
def test_what_is_equal_and_what_is_not(value: np.ndarray, expected: np.ndarray, passes: bool) -> None:
    assert (difference(value, expected, 1e-3, 1e-5)[1] is None) == passes


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, "absent"),
        ([np.ones(1), np.ones(2)], "a sequence"),
        ({"a": 1.0}, "a map"),
        (np.ones(1, ml_dtypes.bfloat16), "bfloat16"),
        (np.array(["a\0"], object), "text that ends in U+0000"),
    ],
)
def test_an_output_that_no_array_holds_is_not_recorded_as_one(tmp_path: Path, value: Any, kind: str) -> None:
    (tmp_path / "inputs.npz").touch()
    with pytest.raises(OrtdeployError, match=rf"output y is {re.escape(kind)}, which outputs\.npz cannot hold"):
        write_outputs(tmp_path, {"y": value}, [], [str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == ["inputs.npz"]
