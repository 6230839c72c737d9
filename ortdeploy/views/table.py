"""A table that fits a terminal: it leaves out columns and folds names, and never cuts a number or a state."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from ortdeploy.views.panel import columns as columns_of
from ortdeploy.views.text import BOLD, Paint

_GAP = 2


class Column(Struct, frozen=True, kw_only=True):
    """A column. Those with the highest `rank` are left out first; 0: never.

    `least` is the width down to which it may be folded, None: it may not.
    """

    name: str
    right: bool = False
    rank: int = 0
    least: int | None = None


class Cell(Struct, frozen=True, kw_only=True):
    """A text, and the code of its color or an empty text."""

    text: str
    code: str = ""


Row = Mapping[str, Cell]


def render_columns(columns: Sequence[Column], rows: Sequence[Row], paint: Paint, width: int | None = None) -> str:
    """Return the names of the columns and the rows below, within `width`; None: no column is left out or folded."""
    widths = _fit(columns, rows, width)
    kept = [column for column in columns if column.name in widths]
    head = {column.name: Cell(text=column.name, code=BOLD) for column in kept}
    return "".join(_row(kept, row, widths, paint) for row in (head, *rows))


def _fit(columns: Sequence[Column], rows: Sequence[Row], width: int | None) -> dict[str, int]:
    """Return the columns that fit, by name, each with its width."""
    needed = {
        one.name: max(columns_of(text) for text in (one.name, *(row[one.name].text for row in rows))) for one in columns
    }
    if width is None:
        return needed
    least = {one.name: _least(one, needed[one.name]) for one in columns}
    for column in sorted(columns, key=lambda one: -one.rank):
        if column.rank and _whole({name: least[name] for name in needed}) > width:
            del needed[column.name]
    for name in reversed(needed):
        over = max(_whole(needed) - width, 0)
        needed[name] = max(needed[name] - over, least[name])
    return needed


def _least(column: Column, needed: int) -> int:
    """Return the width down to which a column may be folded; its name stays whole."""
    return needed if column.least is None else min(needed, max(column.least, columns_of(column.name)))


def _whole(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + _GAP * (len(widths) - 1)


def _row(columns: Sequence[Column], row: Row, widths: Mapping[str, int], paint: Paint) -> str:
    """Return the lines of one row: more than one if a cell is folded."""
    folded = {one.name: _folded(row[one.name].text, widths[one.name]) for one in columns}
    lines = []
    for at in range(max(map(len, folded.values()))):
        cells = []
        for column in columns:
            pieces, code = folded[column.name], row[column.name].code
            text = pieces[at] if at < len(pieces) else ""
            space = " " * (widths[column.name] - columns_of(text))
            shown = paint(text, code) if code and text else text
            cells.append(space + shown if column.right else shown + space)
        lines.append((" " * _GAP).join(cells).rstrip() + "\n")
    return "".join(lines)


def _folded(text: str, width: int) -> list[str]:
    """Return the text in pieces of at most `width` columns."""
    pieces = [""]
    for sign in text:
        if columns_of(pieces[-1] + sign) > width and pieces[-1]:
            pieces.append("")
        pieces[-1] += sign
    return pieces
