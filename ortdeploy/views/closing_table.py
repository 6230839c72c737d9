"""The table of jobs that ends a run on a terminal, with the reasons of those that did not end well."""

import io
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ortdeploy.results.results import JobResult
from ortdeploy.views.text import printable

_STYLES = {"done": "green", "nothing-to-do": "", "paused": "yellow"}
_COLUMNS = {"job": 0, "state": 0, "rows": 0, "failed": 0, "skipped": 80, "time": 80, "rows/s": 80, "output": 60}
"""The columns, and the least width of a terminal for each."""


def render_table(results: Sequence[JobResult], *, color: bool, width: int | None = None) -> str:
    """Return the table as text; `width` is in columns, None: that of this terminal. Narrow ones get fewer columns."""
    if not results:
        return ""
    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=color, no_color=not color, highlight=False)
    shown = [name for name, least in _COLUMNS.items() if console.width >= least]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in shown:
        is_text = name in {"job", "state", "output"}
        table.add_column(name, justify="left" if is_text else "right", no_wrap=name != "output", overflow="fold")
    for result in results:
        cells = _cells(result)
        table.add_row(*(cells[name] for name in shown))
    console.print(table)
    for result in results:
        if result.reason:
            console.print(Text(f"{printable(result.job)}: {printable(result.reason)}"), soft_wrap=True)
    return stream.getvalue()


def _cells(result: JobResult) -> dict[str, Text]:
    """Return the text of each column for one job."""
    kept = f" (+{result.kept:,} kept)" if result.kept else ""
    rate = f"{result.committed / result.seconds:,.0f}" if result.seconds and result.committed else ""
    return {
        "job": Text(printable(result.job)),
        "state": Text(result.status.replace("-", " "), style=_STYLES.get(result.status, "red")),
        "rows": Text(f"{result.committed:,}{kept}"),
        "failed": Text(f"{result.failed:,}"),
        "skipped": Text(f"{result.skipped:,}"),
        "time": Text(f"{result.seconds:.1f} s" if result.seconds else ""),
        "rows/s": Text(rate),
        "output": Text(printable(result.output)),
    }
