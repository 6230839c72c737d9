"""The report as one page that needs nothing else: no scripts, no network; plots are inline SVG."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any

FILE = "_run.html"

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 220, 64, 28

_STYLE = """
:root { color-scheme: light dark; --bad: #c0392b;
  --ink: #1c2733; --soft: #6b7785; --line: #d7dde3; --bar: #2f6fb5; }
@media (prefers-color-scheme: dark) { :root {
  --ink: #e6ebf0; --soft: #97a3b0; --line: #3a444e; --bar: #6aa5e3; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.soft { color: var(--soft); } .bad { color: var(--bad); }
table { border-collapse: collapse; } td, th { padding: .2rem .9rem .2rem 0; text-align: left; vertical-align: top; }
th { color: var(--soft); font-weight: normal; } td.number { text-align: right; font-variant-numeric: tabular-nums; }
svg { max-width: 100%; height: auto; } svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
svg .axis { stroke: var(--line); } svg .bar { fill: var(--bar); }
svg .line { fill: none; stroke: var(--bar); stroke-width: 2; }
.numbers { display: flex; gap: 2.5rem; flex-wrap: wrap; margin: 1rem 0; }
.numbers b { display: block; font-size: 1.4rem; }
"""


def render(report: Mapping[str, Any]) -> str:
    """Return the page."""
    title = f"{report['deployment']} / {report['job']}"
    sections = [
        _head(report, title),
        _section("Throughput over time, rows per second", _line(_throughput(report["timeline"]), "s")),
        _section("Durations of session.run", _bars(_latencies(report["session_run"]["buckets"]))),
        _section("Seconds by stage; stages overlap", _bars(_stages(report["stages"]))),
        _section("Processor seconds by stage", _bars(_processor(report["stages"]))),
        _section("Memory of the process, MiB: resident, and the peak up to then", _bars(_memory(report["memory"]))),
        _section("Failed rows by stage", _failures(report["failures"])),
        _section("Sessions", _sessions(report["sessions"])),
        _section("Made from", _facts(report)),
    ]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n'
        f"<body>\n{''.join(sections)}</body></html>\n"
    )


def _head(report: Mapping[str, Any], title: str) -> str:
    rows = report["rows"]
    rate = rows["input"] / report["seconds_of_all_runs"] if report["seconds_of_all_runs"] else 0.0
    share = report["session_run_share"]
    numbers = {
        "committed": f"{rows['committed']:,}",
        "failed": f"{rows['failed']:,}",
        "skipped": f"{rows['skipped']:,}",
        "rows per second": f"{rate:,.0f}",
        "seconds": f"{report['seconds_of_all_runs']:,.1f}",
        "of the time in session.run": "-" if share is None else f"{share:.0%}",
        "peak memory": _size(report["peak_memory_bytes"]),
    }
    shown = "".join(f"<div><b>{value}</b>{name}</div>" for name, value in numbers.items())
    reason = f'<p class="bad">{escape(report["reason"])}</p>' if report["reason"] else ""
    when = f"{report['started']} to {report['ended'] or 'now'}"
    return (
        f"<h1>{escape(title)}</h1><p class=soft>{escape(report['status'])}, {escape(when)}</p>{reason}"
        f'<div class="numbers">{shown}</div>\n'
    )


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>\n"


def _throughput(timeline: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Return the rate between each two commits, at the time of the second."""
    points = [(0.0, 0.0), *((second, rows) for second, rows in timeline)]
    return [
        (after[0], (after[1] - before[1]) / (after[0] - before[0]))
        for before, after in pairwise(points)
        if after[0] > before[0]
    ]


def _latencies(buckets: Sequence[Sequence[float]]) -> list[tuple[str, float]]:
    """Return how many runs took how long, in steps of a quarter of an octave."""
    merged: Counter[int] = Counter()
    for upper, count in buckets:
        merged[math.ceil(round(math.log2(upper) * 32) / 8)] += int(count)
    return [(f"≤ {_duration(2 ** (step / 4))}", count) for step, count in sorted(merged.items())]


def _stages(stages: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, float]]:
    return [(name, stage["seconds"]) for name, stage in stages.items()]


def _processor(stages: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, float]]:
    return [(name, stage["cpu_seconds"]) for name, stage in stages.items()]


def _memory(memory: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return what the process took at each point of the run, with the limit and what was predicted."""
    words = {"resident_bytes": "", "peak_bytes": ", peak"}
    found = {
        f"{stage.replace('_', ' ')}{words[name]}": taken[name]
        for stage, taken in memory["by_stage"].items()
        for name in words
    }
    found |= {"predicted": memory["predicted_bytes"], "limit": memory["limit_bytes"]}
    return [(name, round(size / 2**20, 1)) for name, size in found.items() if size]


def _failures(failures: Mapping[str, Mapping[str, int]]) -> str:
    """Return a bar for each stage and code, or a word that there are none."""
    found = [(f"{stage}: {code}", float(n)) for stage, codes in failures.items() for code, n in codes.items()]
    return _bars(found) if found else '<p class="soft">None.</p>'


def _sessions(sessions: Iterable[Mapping[str, Any]]) -> str:
    rows = [
        [
            f"{one['session']} #{one['instance']}",
            ", ".join(f"{name} {count}" for name, count in one["placement"].items()),
            f"{one['batches']:,}",
            f"{one['rows']:,}",
            one["failure"] or "",
        ]
        for one in sessions
    ]
    return _table(["session", "nodes by provider", "runs", "rows", ""], rows)


def _facts(report: Mapping[str, Any]) -> str:
    rows = [
        ["plan", report["plan"]],
        ["manifest", report["manifest"]],
        ["model", f"{report['model']['name']} {report['model']['sha256']}"],
        ["run", report["run"]],
        *([name, version] for name, version in report["versions"].items()),
    ]
    return _table([], rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    titles = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{f'<tr>{titles}</tr>' if head else ''}{body}</table>"


def _bars(values: Sequence[tuple[str, float]]) -> str:
    """Return horizontal bars with their names and numbers."""
    if not values:
        return '<p class="soft">Nothing was measured.</p>'
    largest = max(value for _, value in values) or 1.0
    step, left = 20, 170
    lines = []
    for place, (name, value) in enumerate(values):
        y, width = place * step, (_WIDTH - left - 90) * value / largest
        lines.append(
            f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{escape(name)}</text>'
            f'<rect class="bar" x="{left}" y="{y + 3}" width="{width:.1f}" height="{step - 6}"/>'
            f'<text x="{left + width + 6:.1f}" y="{y + 14}">{value:,.6g}</text>'
        )
    return f'<svg viewBox="0 0 {_WIDTH} {len(values) * step}" role="img">{"".join(lines)}</svg>'


def _line(points: Sequence[tuple[float, float]], unit: str) -> str:
    """Return a line over its axes."""
    if not points:
        return '<p class="soft">Nothing was committed yet.</p>'
    last, top = points[-1][0] or 1.0, max(value for _, value in points) or 1.0
    width, height = _WIDTH - _LEFT - 10, _HEIGHT - _BOTTOM - 10
    path = " ".join(f"{_LEFT + width * x / last:.1f},{10 + height * (1 - y / top):.1f}" for x, y in points)
    marks = "".join(
        f'<text x="{_LEFT - 6}" y="{14 + height * (1 - share):.1f}" text-anchor="end">{top * share:,.0f}</text>'
        f'<text x="{_LEFT + width * share:.1f}" y="{_HEIGHT - 10}" text-anchor="{anchor}">'
        f"{last * share:,.1f} {unit}</text>"
        for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end"))
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">'
        f'<path class="axis" fill="none" d="M{_LEFT} 10 V{10 + height} H{_LEFT + width}"/>'
        f'<polyline class="line" points="{path}"/>{marks}</svg>'
    )


def _duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def _size(number: float | None) -> str:
    return "-" if number is None else f"{number / 2**20:,.0f} MiB"
