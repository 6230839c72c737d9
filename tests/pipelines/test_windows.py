"""`windows` against a walk over the values, and its views against copies."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortdeploy.operations.catalogue import OPERATIONS
from ortdeploy.tensors.types import ROWS, InapplicableError, TensorType

SAMPLES = TensorType("float32", (ROWS, None))


def windows(x: Any, type_of: TensorType = SAMPLES, **options: Any) -> tuple[Any, ...]:
    return OPERATIONS["windows"].build(options, {"x": type_of})({"x": x})


def walked(row: np.ndarray, size: int, hop: int, context: int, last: str) -> tuple[list[list[float]], list[int]]:
    """Cut windows value by value: whole ones, and what is left behind the last of them by `last`."""
    found, starts, covered, start = [], [], 0, 0
    while start < len(row):
        whole = start + size <= len(row)
        if not whole and (last == "drop" or covered >= len(row)):
            break
        end = start + size if whole or last == "pad" else len(row)
        places = range(start - context, end)
        found.append([float(row[place]) if 0 <= place < len(row) else 0.0 for place in places])
        starts.append(start)
        covered = start + size
        start += hop
    return found, starts


@given(
    lengths=st.lists(st.integers(0, 23), min_size=1, max_size=4),
    size=st.integers(1, 7),
    hop=st.integers(1, 9),
    context=st.integers(0, 5),
    last=st.sampled_from(["pad", "drop", "short"]),
    alike=st.booleans(),
)
def test_windows_are_those_of_a_walk_over_the_values(
    lengths: list[int], size: int, hop: int, context: int, last: str, alike: bool
) -> None:
    if alike:
        lengths = [lengths[0]] * len(lengths)
    rows = [np.arange(1, length + 1, dtype=np.float32) + 100 * place for place, length in enumerate(lengths)]
    x = np.stack(rows) if alike else rows
    found, starts = windows(x, size=size, hop=hop, context=context, last=last)
    promised = OPERATIONS["windows"].infer(
        {"size": size, "hop": hop, "context": context, "last": last},
        {"x": TensorType("float32", (ROWS, lengths[0] if alike else None))},
    )
    for row, have, begins in zip(rows, found, starts, strict=True):
        expected, places = walked(row, size, hop, context, last)
        assert [np.asarray(one).tolist() for one in have] == expected
        assert list(begins) == places
        assert promised[0].shape is not None
        assert not alike or promised[0].shape[1] == len(expected)
        assert last == "short" or np.shape(have)[1:] == promised[0].shape[2:]


def test_rows_of_vectors_are_cut_along_their_first_axis() -> None:
    x = np.arange(2 * 7 * 3, dtype=np.int64).reshape(2, 7, 3)
    found, starts = windows(x, TensorType("int64", (ROWS, 7, 3)), size=2, context=1)
    assert found.shape == (2, 4, 3, 3)
    np.testing.assert_array_equal(found[1, 0], np.concatenate([np.zeros((1, 3)), x[1, :2]]))
    np.testing.assert_array_equal(found[1, 3], np.concatenate([x[1, 5:], np.zeros((1, 3))]))
    np.testing.assert_array_equal(starts, [[0, 2, 4, 6]] * 2)


def test_text_is_filled_up_with_empty_text() -> None:
    (found, _) = windows([np.array(["a", "b", "c"], dtype=object)], TensorType("string", (ROWS, None)), size=2)
    assert [row.tolist() for row in found] == [[["a", "b"], ["c", ""]]]


@pytest.mark.parametrize("last", ["pad", "drop", "short"])
@pytest.mark.parametrize("alike", [True, False])
def test_a_long_row_is_copied_once_however_much_its_windows_overlap(last: str, alike: bool) -> None:
    row = np.zeros(100_000, dtype=np.float32)
    found, _ = windows(row[np.newaxis] if alike else [row], size=400, hop=10, context=90, last=last)
    bases = {id(one.base if one.base is not None else one) for one in found[0]}
    assert len(bases) == 1
    whole = found[0][0]
    while whole.base is not None:
        whole = whole.base
    assert whole.nbytes <= row.nbytes + 4 * 500
    assert len(found[0]) > 9_900


def test_a_column_of_single_values_is_refused() -> None:
    with pytest.raises(InapplicableError, match=r"it takes \[rows, values, …\] and gets float32 \[rows\]"):
        OPERATIONS["windows"].infer({"size": 4}, {"x": TensorType("float32", (ROWS,))})
