"""The table of jobs that ends a run on a terminal, with the reasons of those that did not end well."""

import io
from collections.abc import Mapping, Sequence
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ortdeploy.results.results import JobResult
from ortdeploy.views.text import printable, wrapped

_STYLES = {"done": "green", "nothing-to-do": "", "paused": "yellow"}
_ORDER = ("job", "state", "rows", "kept", "failed", "skipped", "time", "rows/s", "output")
_DROPPED = ("rows/s", "skipped", "time", "output", "failed", "kept")
"""What a narrow terminal does without, in this order; job, state and rows always stay."""
_FOLDED = {"job": 12, "output": 16}
"""The columns that may be folded, and the least width of each. No other is ever cut."""
_GAP = 2


def render_table(results: Sequence[JobResult], *, color: bool, width: int | None = None) -> str:
    """Return the table as text; `width` is in columns, None: that of this terminal. Narrow ones get fewer columns."""
    if not results:
        return ""
    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=color, no_color=not color, highlight=False)
    rows = [_cells(result) for result in results]
    table = Table(box=None, padding=(0, _GAP, 0, 0), header_style="bold", pad_edge=False)
    widths = _widths(rows, console.width)
    for name, columns in widths.items():
        justify: Literal["left", "right"] = "left" if name in {"job", "state", "output"} else "right"
        table.add_column(name, justify=justify, width=columns, overflow="fold")
    for row in rows:
        table.add_row(*(row[name] for name in widths))
    console.print(table)
    text = "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())
    for result in results:
        if result.reason:
            text += wrapped(f"{printable(result.job)}: {printable(result.reason)}", console.width)
    return text


def _widths(rows: Sequence[Mapping[str, Text]], width: int) -> dict[str, int]:
    """Return the columns that fit into `width`, each with its own; numbers and states get all that they need."""
    needed = {name: max(len(name), *(row[name].cell_len for row in rows)) for name in _ORDER}
    if not any(row["kept"] for row in rows):
        del needed["kept"]
    for name in _DROPPED:
        least = {one: min(columns, _FOLDED.get(one, columns)) for one, columns in needed.items()}
        if _whole(least) <= width:
            break
        needed.pop(name, None)
    for name in reversed(_FOLDED):
        if name in needed:
            over = max(_whole(needed) - width, 0)
            needed[name] = max(needed[name] - over, min(needed[name], _FOLDED[name]))
    return needed


def _whole(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + _GAP * (len(widths) - 1)


def _cells(result: JobResult) -> dict[str, Text]:
    """Return the text of each column for one job."""
    rate = f"{result.committed / result.seconds:,.0f}" if result.seconds and result.committed else ""
    return {
        "job": Text(printable(result.job)),
        "state": Text(result.status.replace("-", " "), style=_STYLES.get(result.status, "red")),
        "rows": Text(f"{result.committed:,}"),
        "kept": Text(f"{result.kept:,}" if result.kept else ""),
        "failed": Text(f"{result.failed:,}"),
        "skipped": Text(f"{result.skipped:,}"),
        "time": Text(f"{result.seconds:,.1f} s" if result.seconds else ""),
        "rows/s": Text(rate),
        "output": Text(printable(result.output)),
    }
