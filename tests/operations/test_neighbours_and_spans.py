"""The nearest vectors of a file against numpy's products, and spans of time against a walk over the steps."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import effort

from ortdeploy.operations.catalogue import OPERATIONS
from ortdeploy.tensors.types import ROWS, InapplicableError, TensorType


def near(x: np.ndarray, path: Path, **options: Any) -> tuple[np.ndarray, ...]:
    types = {"x": TensorType(x.dtype.name, (ROWS, *x.shape[1:]))}
    OPERATIONS["neighbours"].infer({"of": str(path), **options}, types)
    made = OPERATIONS["neighbours"].build({"of": str(path), **options}, types)({"x": x})
    return tuple(np.array(list(column)) for column in made)


@pytest.mark.parametrize("by", ["cosine", "dot"])
def test_neighbours_are_those_of_numpy(tmp_path: Path, by: str) -> None:
    random = np.random.default_rng(1)
    vectors, x = random.normal(size=(40_000, 8)).astype(np.float32), random.normal(size=(3, 8)).astype(np.float32)
    vectors[7] = 0
    names = np.array([f"n{number}" for number in range(len(vectors))])
    np.savez(tmp_path / "c.npz", vectors=vectors, names=names)
    found, scores, places = near(x, tmp_path / "c.npz", top=6, by=by)
    products = x.astype(float) @ vectors.T.astype(float)
    if by == "cosine":
        lengths = np.linalg.norm(vectors.astype(float), axis=1)
        products /= np.linalg.norm(x.astype(float), axis=1)[:, None] * np.where(lengths, lengths, 1)
    np.testing.assert_array_equal(places, np.argsort(-products, axis=1)[:, :6])
    np.testing.assert_allclose(scores, np.take_along_axis(products, places, axis=1), rtol=1e-5)
    np.testing.assert_array_equal(found, names[places])


def test_of_equal_scores_the_first_comes_first_and_names_may_be_places(tmp_path: Path) -> None:
    np.save(tmp_path / "c.npy", np.array([[0, 1], [1, 0], [2, 0], [0, 0]], np.float32))
    found, scores, _ = near(np.array([[3, 0], [0, 0]], np.float32), tmp_path / "c.npy", top=9)
    assert found.tolist() == [["1", "2", "0", "3"], ["0", "1", "2", "3"]]
    np.testing.assert_allclose(scores, [[1, 1, 0, 0], [0, 0, 0, 0]])


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_vectors_of_very_small_or_large_numbers_have_a_direction(tmp_path: Path, size: float) -> None:
    vectors = np.array([[0, 1], [1, 0], [1, 1]], np.float32)
    np.save(tmp_path / "c.npy", vectors * np.float32(size))
    found, scores, _ = near(np.array([[size, 0]], np.float32), tmp_path / "c.npy", top=3)
    assert found.tolist() == [["1", "2", "0"]]
    np.testing.assert_allclose(scores, [[1, 0.5**0.5, 0]], rtol=1e-6)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"others": np.zeros((2, 2), np.float32)}, "no array called vectors"),
        ({"vectors": np.zeros(3, np.float32)}, "no array called vectors of floating numbers"),
        ({"vectors": np.full((2, 2), np.nan, np.float32)}, "NaN or infinities"),
        ({"vectors": np.zeros((2, 2), np.float32), "names": np.array(["a"])}, "2 vectors have names [1]"),
        ({"vectors": np.zeros((2, 2), np.float32), "names": np.array([1, 2])}, "its names are int64, and no text"),
    ],
)
def test_a_file_without_vectors_is_refused(tmp_path: Path, arrays: dict[str, np.ndarray], words: str) -> None:
    np.savez(tmp_path / "c.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=words.replace("[", r"\[")):
        near(np.zeros((1, 2), np.float32), tmp_path / "c.npz")
    np.save(tmp_path / "d.npy", np.zeros((2, 3), np.float32))
    with pytest.raises(ValueError, match="a vector has 2 numbers, and those of the file have 3"):
        near(np.zeros((1, 2), np.float32), tmp_path / "d.npy")


def spans(x: list[float], **options: Any) -> tuple[list[list[float]], list[float]]:
    types = {"x": TensorType("float32", (ROWS, None))}
    OPERATIONS["time_spans"].infer(options, types)
    found, scores = OPERATIONS["time_spans"].build(options, types)({"x": np.array([x], np.float32)})
    return np.round(found[0], 6).tolist(), [round(float(one), 6) for one in scores[0]]


def walked(x: list[float], on: float, off: float, gap: int, shortest: int, margin: int) -> list[list[int]]:
    """Find spans step by step, all settings counted in steps."""
    found: list[list[int]] = []
    begin: int | None = None
    for place, value in enumerate([*x, -1.0]):
        if begin is None and value >= on:
            begin = place
        elif begin is not None and value < off:
            if found and begin - found[-1][1] < gap:
                found[-1][1] = place
            else:
                found.append([begin, place])
            begin = None
    joined: list[list[int]] = []
    for first, last in [one for one in found if one[1] - one[0] >= shortest]:
        grown = [max(first - margin, 0), min(last + margin, len(x))]
        if joined and grown[0] <= joined[-1][1]:
            joined[-1][1] = grown[1]
        else:
            joined.append(grown)
    return joined


@settings(max_examples=effort(60, 2000))
@given(
    st.lists(st.sampled_from([0.1, 0.4, 0.6, 0.9]), max_size=16),
    st.sampled_from([0.5, 0.3]),
    st.integers(0, 4),
    st.integers(0, 4),
    st.integers(0, 3),
)
def test_spans_are_those_of_a_walk(x: list[float], off: float, gap: int, shortest: int, margin: int) -> None:
    settings_ = {"end": off, "gap": gap * 0.1, "shortest": shortest * 0.1, "margin": margin * 0.1, "step": 0.1}
    found, scores = spans(x, **settings_)
    wanted = walked(x, 0.5, off, gap, shortest, margin)
    assert found == [[round(one * 0.1, 6) for one in pair] for pair in wanted]
    assert len(scores) == len(found)


def test_the_score_of_a_span_is_its_mean_and_time_may_begin_elsewhere() -> None:
    assert spans([0, 0.5, 1, 0, 0.75], step=0.5, first=10) == ([[10.5, 11.5], [12, 12.5]], [0.75, 0.75])
    assert spans([], step=1) == ([], [])
    with pytest.raises(InapplicableError, match=r"end is 0.7 and begin is 0.5: a span would end before it begins"):
        spans([0.5], step=1, end=0.7)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_value_reaches_a_limit_that_is_written_alike(dtype: str) -> None:
    """0.7 of float32 is less than 0.7 of float64, and 0.35 of float32 is more than that of float64."""
    x = np.array([[0.1, 0.7, 0.35, 0.3]], dtype)
    options = {"step": 1.0, "begin": 0.7, "end": 0.35}
    (spans,), _ = OPERATIONS["time_spans"].build(options, {"x": TensorType(dtype, (ROWS, 4))})({"x": x})
    assert spans.tolist() == [[1.0, 3.0]]
