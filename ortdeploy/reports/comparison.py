"""The page that compares two reports: the same charts with the same axes side by side, and their differences."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from msgspec import Struct

from ortdeploy.durations import moment
from ortdeploy.reports import charts, html
from ortdeploy.reports.page import numbers, page, section, soft, table

Report = Mapping[str, Any]
Pair = tuple[Report, Report]

_MOST_DIFFERENCES = 400
_MEASURED: tuple[tuple[str, Callable[[Report], float | None], Callable[[float], str], int], ...] = (
    ("rows committed", lambda one: one["rows"]["committed"], charts.number, 1),
    ("rows failed", lambda one: one["rows"]["failed"], charts.number, -1),
    ("rows per second", html.rate_of, charts.number, 1),
    ("time of all runs", lambda one: one["seconds_of_all_runs"], charts.duration, -1),
    ("share in session.run", lambda one: one["session_run_share"], lambda share: f"{share:.0%}", 1),
    ("session.run p50", lambda one: one["session_run"]["p50"], charts.duration, -1),
    ("session.run p90", lambda one: one["session_run"]["p90"], charts.duration, -1),
    ("session.run p99", lambda one: one["session_run"]["p99"], charts.duration, -1),
    ("peak memory", lambda one: one["peak_memory_bytes"], lambda size: f"{size / 2**20:,.0f} MiB", -1),
)
"""The compared numbers: name, place in the report, formatting, and 1 if more is better, else -1."""


def render(reports: Pair, names: tuple[str, str], differences: Sequence[tuple[str, str, str]]) -> str:
    """Return the page; `differences` are places in the reports with both values."""
    return page(f"{names[0]} and {names[1]}", [_head(reports, names), *_charts(reports), _differences(differences)])


def _head(reports: Pair, names: tuple[str, str]) -> str:
    titles = "".join(
        f"<p><b>{letter}</b> {escape(name)}: {escape(one['deployment'])} / {escape(one['job'])}, "
        f"{escape(one['status'])}, run {escape(one['run'])} of {escape(moment(one['started']))}</p>"
        f"{_invocation(one)}"
        for letter, name, one in zip("AB", names, reports, strict=True)
    )
    return f'<header class="wide"><h1>Two runs</h1>{titles}{_measured(reports)}</header>\n'


def _invocation(report: Report) -> str:
    said = html.invocation(report)
    return soft("; ".join(f"{name}: {value}" for name, value in said.items())) if said else ""


class Figure(Struct, frozen=True, kw_only=True):
    """A number of two reports, as text; `kind` is `up` if the change is for the better, `down` if not, else empty."""

    name: str
    old: str
    new: str
    change: str
    kind: str


def figures(reports: Pair) -> tuple[Figure, ...]:
    """Return the most important numbers of both. Raises what `render` does if they are no reports."""
    return tuple(_figure(reports, *one) for one in _MEASURED)


def _figure(
    reports: Pair, name: str, of: Callable[[Report], float | None], written: Callable[[float], str], better: int
) -> Figure:
    old, new = (of(one) for one in reports)
    texts = ["-" if one is None else written(one) for one in (old, new)]
    change, kind = _change(old, new, better)
    return Figure(name=name, old=texts[0], new=texts[1], change=change, kind=kind)


def _change(old: float | None, new: float | None, better: int) -> tuple[str, str]:
    """Return by how much a number has changed, and whether that is `up` (better) or `down`."""
    if old is None or new is None or old == new:
        return "", ""
    if not old:
        return "new", ""
    share = (new - old) / abs(old)
    return f"{share:+.1%}", "up" if share * better > 0 else "down"


def _measured(reports: Pair) -> str:
    rows = "".join(map(_row, figures(reports)))
    head = '<tr><th></th><th class="n">A</th><th class="n">B</th><th class="n">change</th></tr>'
    return f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>"


def _row(one: Figure) -> str:
    cells = "".join(f'<td class="n">{escape(text)}</td>' for text in (one.old, one.new))
    change = f'<span class="{one.kind}">{one.change}</span>' if one.kind else one.change
    return f'<tr><td>{escape(one.name)}</td>{cells}<td class="n">{change}</td></tr>'


def _charts(reports: Pair) -> Iterator[str]:
    end = max(float(one["seconds_of_all_runs"]) for one in reports)
    rate = max((rate for one in reports for _, rate in html.rates(one)), default=0.0)
    size = max(map(html.most_memory, reports))
    bars = [bar for one in reports for bar in html.quarters(one["session_run"]["buckets"])]
    edges = html.edges_of(sorted(bars)) if bars else None
    drawn: dict[str, Callable[[Report], str]] = {
        "Throughput over time": lambda one: html.throughput(one, end=end, top=rate),
        "Durations of session.run": lambda one: html.latencies(one["session_run"], edges),
        "Time by stage": lambda one: html.stages(one["stages"]),
        "Memory of the process": lambda one: html.memory(one, end=end, top=size),
        "Nodes by provider": html.placement,
        "Failed rows": lambda one: _failures(one["failures"]),
    }
    for title, draw in drawn.items():
        yield "".join(section(f"{letter}: {title}", draw(one)) for letter, one in zip("AB", reports, strict=True))


def _failures(counts: Mapping[str, Mapping[str, int]]) -> str:
    found = html.failure_counts(counts)
    return numbers(found) if found else soft("None.")


def _differences(differences: Sequence[tuple[str, str, str]]) -> str:
    listed: Iterable[tuple[str, str, str]] = differences[:_MOST_DIFFERENCES]
    more = len(differences) - _MOST_DIFFERENCES
    rest = soft(f"And {more:,} more; ortdeploy diff prints them all.") if more > 0 else ""
    content = f'<div class="scroll">{table(["place", "A", "B"], listed)}</div>{rest}' if differences else soft("None.")
    return section("What differs", content, wide=True)
