"""What steps and operations compute is what float64 computes, rounded once, whatever the element type of their input."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays, from_dtype
from support.effort import effort

from ortdeploy.operations.catalogue import OPERATIONS
from ortdeploy.tensors.conversion import ConversionError
from ortdeploy.tensors.elements import numpy_dtype, widened
from ortdeploy.tensors.types import TensorType

Wide = Callable[[np.ndarray], np.ndarray]
"""From float64 [rows, …] to float64 [rows, …]."""


def run(name: str, x: np.ndarray, options: Mapping[str, Any] | None = None, **more: np.ndarray) -> tuple[Any, ...]:
    """Return what an operation gives for arrays [rows, …]."""
    values = {"x": x, **more}
    types = {key: TensorType(one.dtype.name, one.shape) for key, one in values.items()}
    return OPERATIONS[name].build(options or {}, types)(values)


def l2(x: np.ndarray) -> np.ndarray:
    largest = np.maximum(np.abs(x).max(-1, keepdims=True), np.finfo(float).tiny)
    length = np.linalg.norm(x / largest, axis=-1, keepdims=True)
    return np.asarray(x / largest / np.maximum(length, np.finfo(float).tiny))


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def sigmoid(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-x)))


CASES: dict[str, tuple[Mapping[str, Any], Wide]] = {
    "softmax": ({"softmax": "x", "as": "y"}, softmax),
    "sigmoid": ({"sigmoid": "x", "as": "y"}, sigmoid),
    "l2_normalize": ({}, l2),
    "mono": ({"mono": True}, lambda x: np.asarray(x.mean(1))),
    "scale": ({"scale": 1 / 255}, lambda x: x / 255),
    "normalize": ({"normalize": {"mean": 0.456, "std": 0.224}}, lambda x: (x - 0.456) / 0.224),
    "pixels": ({}, lambda x: np.round(x.clip(0, 1) * 255)),
}
SIZES: dict[str, Wide] = {
    "mono": lambda x: np.asarray(np.abs(x).mean(1)),
    "normalize": lambda x: (np.abs(x) + 0.456) / 0.224,
}
"""How large the numbers are of whose rounding a result consists, where they may be larger than it."""
FLOATING = ("float16", "float32", "float64")
PAIRS = [
    (name, dtype)
    for name in CASES
    for dtype in (*FLOATING, "uint8", "int64", "bfloat16")
    if dtype in FLOATING or name in {"softmax", "sigmoid", "scale", "normalize"}
]


def check(name: str, x: np.ndarray) -> None:
    options, wide = CASES[name]
    want = wide(widened(x).astype(np.float64))
    (have,) = run(name, x, options)
    own = x.dtype.name if x.dtype.name in FLOATING else "float32"
    step = np.finfo(np.float32 if own != "float64" else np.float64).eps
    last = np.finfo(own).eps
    size = SIZES.get(name, np.abs)(want if name not in SIZES else widened(x).astype(np.float64))
    apart = np.abs(have.astype(np.float64) - want)
    close = apart <= np.abs(want) * last + size * 64 * step + 1e-3 * step + float(np.finfo(own).smallest_subnormal)
    assert (close | (np.abs(want) > np.finfo(own).max)).all(), (name, x, have, want)


@pytest.mark.quick("softmax-float16", "l2_normalize-float16", "mono-float16", "scale-bfloat16", "softmax-int64")
@pytest.mark.parametrize(("name", "dtype"), PAIRS)
def test_many_large_and_small_numbers(name: str, dtype: str) -> None:
    random = np.random.default_rng(3)
    for shape in ((2, 3, 384), (1, 2, 70000)):
        for size in (0.01, 1, 20, 250):
            numbers = random.normal(size=shape) * size
            x = np.abs(numbers).astype(np.uint8) if dtype == "uint8" else numbers.astype(numpy_dtype(dtype))
            check(name, x)


@pytest.mark.quick("l2_normalize-float32", "normalize-float16", "pixels-float16")
@settings(max_examples=effort(10, 300))
@given(st.data())
@pytest.mark.parametrize(("name", "dtype"), [pair for pair in PAIRS if pair[1] in FLOATING and pair[0] != "scale"])
def test_numbers_at_the_borders_of_their_type(name: str, dtype: str, data: st.DataObject) -> None:
    most = float(np.finfo(dtype).max) / (4 if name == "mono" and dtype != "float16" else 1)  # a sum is of float32
    finite = from_dtype(np.dtype(dtype), min_value=-most, max_value=most, allow_nan=False)
    x = data.draw(arrays(dtype, (2, 2, 3), elements=finite | st.sampled_from([0.0, -0.0, most, -most])))
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype == "float16" and np.abs(CASES[name][1](x.astype(np.float64))).max() >= 65520:
            with pytest.raises(ConversionError, match="does not fit float16"):
                check(name, x)
        else:
            check(name, x)


@pytest.mark.parametrize("dtype", FLOATING)
def test_a_mean_of_many_tokens(dtype: str) -> None:
    x = np.ones((2, 8192, 4), dtype)
    (have,) = run("mean_pool", x, mask=np.ones((2, 8192), np.int64))
    assert have.dtype == dtype
    assert (have == 1).all()


def test_a_mean_by_weights() -> None:
    """Their sum may be below 1; where nothing counts, the mean is 0."""
    weights = np.array([[0.25, 0.25, 0], [0, 0, 0], [1, 3, 0]], np.float32)
    (have,) = run("mean_pool", np.array([[[1], [2], [9]]] * 3, np.float32), mask=weights)
    assert have.tolist() == [[1.5], [0], [1.75]]


def test_differences_of_large_whole_scores_count() -> None:
    x = np.array([[2**53, 2**53 - 2, 2**24 + 1]], np.int64)
    (have,) = run("softmax", x, {"softmax": "x", "as": "y"})
    assert have[0].tolist() == pytest.approx([1 / (1 + np.exp(-2)), np.exp(-2) / (1 + np.exp(-2)), 0])


def test_what_overflows_half_precision_fails_by_name() -> None:
    with pytest.raises(ConversionError, match=r"131008\.0 does not fit float16"):
        run("scale", np.array([[65504]], np.float16), {"scale": 2})


def test_boxes_of_half_precision_are_decoded_in_single() -> None:
    box = np.array([[1023, 1021, 3, 5, 0.9, 0.9]] * 7, np.float16)
    boxes, scores, _, _ = run("yolo_decode", box[np.newaxis], {"version": "v5", "values": "last", "classes": 1})
    assert boxes[0, 0].tolist() == [1021.5, 1018.5, 1024.5, 1023.5]
    assert scores[0, 0, 0] == np.float32(box[0, 4]) * np.float32(box[0, 5])


def test_grey_of_whole_numbers_is_rounded_and_not_cut() -> None:
    white = np.full((1, 1, 1, 3), 65535, np.uint16)
    (have,) = run("grayscale", white, {"grayscale": True})
    assert have.ravel().tolist() == [65535]
    half = np.full((1, 1, 1, 3), 60000, np.float16)
    assert run("grayscale", half, {"grayscale": True})[0].ravel().tolist() == [60000]


def test_a_class_that_no_whole_number_names_fails() -> None:
    row = np.array([[[0, 0, 1, 1, 0.5, np.inf]] * 7], np.float32)
    with pytest.raises(ConversionError, match="inf does not fit int64"):
        run("yolo_decode", row, {"version": "v10", "values": "last"})


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64"])
def test_a_small_difference_of_large_whole_numbers_is_kept(dtype: str) -> None:
    """float32 has one number in 128 there, such as seconds since 1970."""
    seconds = np.array([[1_700_000_000, 1_700_000_001, 1_700_000_100]], dtype)
    (found,) = run("normalize", seconds, {"normalize": {"mean": 1_700_000_000, "std": 10}})
    assert found.dtype == np.float32
    assert found.tolist() == np.array([[0, 0.1, 10]], np.float32).tolist()
