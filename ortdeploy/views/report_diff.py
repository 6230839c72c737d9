"""The output of `ortdeploy diff` for two reports: the most important numbers, then what else differs."""

import re
from collections.abc import Sequence

from ortdeploy.planning.differences import Difference
from ortdeploy.running.reports.comparison import Figure
from ortdeploy.views.text import BOLD, GREEN, RED, count, painter, render_differences, safe

_IN_ANY_RUN = re.compile(
    r"(?:run|started|ended|seconds|plan|seconds_of_all_runs|session_run|session_run_share|stages|peak_memory_bytes|process"
    r"|memory|machine|parts|provenance|deployments|forgotten|rows\.(?:committed|failed))(?![\w-])"
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
    paint = painter(color=color)
    rows = [("", "A", "B", "CHANGE"), *((one.name, one.old, one.new, one.change) for one in figures)]
    widths = [max(len(row[at]) for row in rows) for at in range(4)]
    justified = ([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows)
    lines = ["  ".join(cells).rstrip() for cells in justified]
    codes = [BOLD, *(_COLORS[one.kind] for one in figures)]
    table = "".join(f"{paint(line, code) if code else line}\n" for line, code in zip(lines, codes, strict=True))
    return safe(f"A: {names[0]}\nB: {names[1]}\n{table}\n")
