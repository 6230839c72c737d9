"""The table that `ortdeploy try` prints, and the spans of recordings."""

from typing import Any

import pytest

from ortdeploy.views.tryout import cell, render_spans, render_tryout, spans


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0.123456, "0.1235"),
        (7, "7"),
        ("plain", "plain"),
        ("x" * 50, "x" * 39 + "…"),
        ("a\x1b[31mb", "a\N{REPLACEMENT CHARACTER}[31mb"),
        ([1, 2], "[1, 2]"),
        ([1.5] * 9, "[1.5, 1.5, 1.5, 1.5, … 9]"),
        ([[1, 2, 3, 4]], "1 of [1, 2, 3, 4]"),
        ([[0] * 9] * 3, "3 of [0, 0, 0, 0, …]"),
        ({"a": 0.5, "b": 0.25}, "a: 0.5, b: 0.25"),
    ],
)
def test_a_cell_is_one_short_line(value: Any, shown: str) -> None:
    assert cell(value) == shown


def test_columns_stand_below_their_names() -> None:
    shown = render_tryout("read", [{"row": 0, "name": "cat"}, {"row": 1, "name": "elephant"}], [], color=False)
    assert shown.splitlines() == ["read: 2 rows", "  row  name", "  ---  --------", "  0    cat", "  1    elephant"]


def test_windows_above_a_half_make_spans() -> None:
    values, starts = [0.1, 0.9, 0.6, 0.2, 0.7], [0, 100, 200, 300, 400]
    assert list(spans(values, starts, 100)) == [(1.0, 3.0, 0.9), (4.0, 5.0, 0.7)]


def test_only_recordings_have_spans() -> None:
    row = {"row": 0, "start": [0, 512], "speech": [0.9, 0.8]}
    assert render_spans([row], None) == ""
    assert render_spans([row], 16000) == "  speech of 0: 0.00-0.06 s (0.90)\n"
    assert render_spans([{**row, "speech": [0.1, 0.2]}], 16000) == "  speech of 0: none\n"
