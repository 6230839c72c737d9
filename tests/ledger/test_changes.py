"""Rows as spans, which the ledger keeps of rows that leave their parts and of those that run again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortdeploy.ledger.changes import as_spans, rows_in


@pytest.mark.parametrize(
    ("rows", "spans"),
    [([], ()), ([4], ((4, 1),)), ([5, 3, 4, 9], ((3, 3), (9, 1))), ([0, 2, 4], ((0, 1), (2, 1), (4, 1)))],
)
def test_rows_are_the_fewest_spans_in_order(rows: list[int], spans: tuple[tuple[int, int], ...]) -> None:
    assert as_spans(rows) == spans


@given(rows=st.sets(st.integers(0, 40)), start=st.integers(0, 20), end=st.integers(20, 41))
def test_spans_have_the_rows_that_they_are_made_of(rows: set[int], start: int, end: int) -> None:
    assert [*rows_in(as_spans(rows), start, end)] == [row for row in sorted(rows) if start <= row < end]
