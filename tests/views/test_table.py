"""Tables of text that fit a terminal."""

import pytest

from ortdeploy.views.panel import columns
from ortdeploy.views.table import Cell, Column, render_columns
from ortdeploy.views.text import GREEN, painter

COLUMNS = (Column(name="NAME", least=6), Column(name="ROWS", right=True), Column(name="PLACE", rank=1, least=4))
ROWS = [
    {"NAME": Cell(text="\u6570\u5b57\u8bc6\u522b"), "ROWS": Cell(text="1,234"), "PLACE": Cell(text="a")},
    {"NAME": Cell(text="read"), "ROWS": Cell(text="7", code=GREEN), "PLACE": Cell(text="outbox/read")},
]


def table(width: int | None, *, color: bool = False) -> list[str]:
    return render_columns(COLUMNS, ROWS, painter(color=color), width).splitlines()


def test_ideographs_take_two_columns() -> None:
    head, first, second = table(None)
    assert columns(first[: first.index("1,234")]) == head.index("ROWS") - 1 == second.index("7") - 4


@pytest.mark.parametrize(
    ("width", "lines", "has_place"), [(28, 3, True), (20, 6, True), (17, 3, False), (13, 4, False)]
)
def test_a_column_is_folded_then_left_out_and_no_line_is_too_wide(width: int, lines: int, *, has_place: bool) -> None:
    shown = table(width)
    assert all(columns(line) <= width for line in shown)
    assert (len(shown), "PLACE" in shown[0]) == (lines, has_place)
    assert "1,234" in shown[1]


def test_colors_take_no_room() -> None:
    assert [
        line.replace("\x1b[32m", "").replace("\x1b[1m", "").replace("\x1b[0m", "") for line in table(26, color=True)
    ] == table(26)
