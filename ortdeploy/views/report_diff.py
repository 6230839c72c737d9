"""The output of `ortdeploy diff` for two reports: the most important numbers, then what else differs."""

import re
from collections.abc import Sequence

from ortdeploy.planning.differences import Difference
from ortdeploy.reports.comparison import Figure
from ortdeploy.terminal_text import safe
from ortdeploy.views.table import Cell, Column, render_columns
from ortdeploy.views.text import GREEN, RED, count, painter, render_differences

_IN_ANY_RUN = re.compile(
    r"(?:run|started|ended|seconds|plan|seconds_of_all_runs|session_run|session_run_share|stages|written|peak_memory_bytes|process"
    r"|memory|machine|parts|provenance|deployments|forgotten|proven|rows\.(?:committed|failed))(?![\w-])"
    r"|sessions\[.*\]\.(?:session_run|batches)(?![\w-])"
)
"""Places that differ in any two runs, or that the numbers above say."""
_COLORS = {"up": GREEN, "down": RED, "": ""}


def render_report_diff(
    names: tuple[str, str],
    figures: Sequence[Figure],
    differences: Sequence[Difference],
    *,
    color: bool,
    verbose: bool = False,
) -> str:
    """Return the numbers of two reports side by side, and the other differences; with `verbose`, those of any two runs.

    `figures` is empty if a report lacks some of the numbers.
    """
    shown = [one for one in differences if verbose or not _IN_ANY_RUN.match(one.path)]
    left = len(differences) - len(shown)
    rest = f"{count(left, 'more difference')} in measurements, parts and provenance: -v shows them.\n" if left else ""
    return _table(names, figures, color=color) + render_differences(shown, color=color) + rest


def _table(names: tuple[str, str], figures: Sequence[Figure], *, color: bool) -> str:
    if not figures:
        return ""
    rows = [
        {
            "": Cell(text=one.name),
            "A": Cell(text=one.old),
            "B": Cell(text=one.new),
            "CHANGE": Cell(text=one.change, code=_COLORS[one.kind]),
        }
        for one in figures
    ]
    columns = (Column(name=""), *(Column(name=name, right=True) for name in ("A", "B", "CHANGE")))
    return safe(f"A: {names[0]}\nB: {names[1]}\n{render_columns(columns, rows, painter(color=color))}\n")
