"""The table of jobs that ends a run on a terminal, with the reasons of those that did not end well."""

from collections.abc import Sequence

from ortdeploy.results.results import JobResult
from ortdeploy.terminal_text import printable
from ortdeploy.views.table import Cell, Column, Row, render_columns
from ortdeploy.views.text import GREEN, RED, YELLOW, painter, wrapped

_COLORS = {"done": GREEN, "nothing-to-do": "", "paused": YELLOW}
_COLUMNS = (
    Column(name="job", least=12),
    Column(name="state"),
    Column(name="rows", right=True),
    Column(name="kept", right=True, rank=1),
    Column(name="failed", right=True, rank=2),
    Column(name="skipped", right=True, rank=5),
    Column(name="time", right=True, rank=4),
    Column(name="rows/s", right=True, rank=6),
    Column(name="output", rank=3, least=16),
)


def render_table(results: Sequence[JobResult], *, color: bool, width: int) -> str:
    """Return the table as text, for a terminal of `width` columns. Narrow ones get fewer columns of the table."""
    if not results:
        return ""
    shown = [column for column in _COLUMNS if column.name != "kept" or any(result.kept for result in results)]
    text = render_columns(shown, [_row(result) for result in results], painter(color=color), width)
    told = (
        f"{printable(result.job)}: {printable(text)}"
        for result in results
        for text in (*filter(None, [result.reason]), *result.memory)
    )
    return text + "".join(wrapped(line, width) for line in told)


def _row(result: JobResult) -> Row:
    """Return the cells of one job; its time is that of this run, and so is its rate."""
    rows = result.ran or result.committed
    texts = {
        "job": printable(result.job),
        "rows": f"{result.committed:,}",
        "kept": f"{result.kept:,}" if result.kept else "",
        "failed": f"{result.failed:,}",
        "skipped": f"{result.skipped:,}",
        "time": f"{result.seconds:,.1f} s" if result.seconds else "",
        "rows/s": f"{rows / result.seconds:,.0f}" if result.seconds and rows else "",
        "output": printable(result.output),
    }
    state = Cell(text=result.status.replace("-", " "), code=_COLORS.get(result.status, RED))
    return {"state": state, **{name: Cell(text=text) for name, text in texts.items()}}
