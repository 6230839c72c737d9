"""The report as one self-contained page: charts are inline, and nothing is fetched from any address."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any

from ortdeploy.durations import moment
from ortdeploy.files.names import REPORTS
from ortdeploy.reports import charts
from ortdeploy.reports.charts import COLORS, Curve
from ortdeploy.reports.illustrations import FAILED_COLUMNS, Example, Illustrations, Picture
from ortdeploy.reports.page import numbers, page, searchable, section, soft, table
from ortdeploy.shell import command

FILE = REPORTS["html"]

_MOST_STRIPS = 120
_MOST_PARTS = 200
_RUNS_OF = {"p50": 2, "p90": 10, "p99": 100, "p99.9": 1000}
"""How many runs a percentile needs, so that one of them is beyond it."""
_STATES = {"done": "good", "running": "soft", "paused": "soft"}


def render(report: Mapping[str, Any], shown: Illustrations) -> str:
    """Return the page."""
    title = f"{report['deployment']} / {report['job']}"
    return page(title, [_head(report, title), *_sections(report), *_rows(report, shown), *_details(report)])


def _sections(report: Mapping[str, Any]) -> Iterator[str]:
    yield section("Throughput over time", throughput(report), wide=True)
    yield section("Durations of session.run", latencies(report["session_run"]))
    yield section("Time by stage; stages overlap", stages(report["stages"]))
    yield section("Memory of the process", memory(report))
    yield section("Nodes by provider", placement(report))


def _rows(report: Mapping[str, Any], shown: Illustrations) -> Iterator[str]:
    yield section("Failed rows", _failures(report["failures"], shown), wide=True)
    if shown.examples or shown.why_none:
        content = "".join(map(_example, shown.examples)) or soft(f"They cannot be shown: {shown.why_none}")
        yield section("Rows and their results", f'<div class="gallery">{content}</div>', wide=True)


def _details(report: Mapping[str, Any]) -> Iterator[str]:
    yield section("Sessions", f'<div class="scroll">{_sessions(report["sessions"])}</div>', wide=True)
    parts = report["parts"]
    more = soft(f"And {len(parts) - _MOST_PARTS:,} more.") if len(parts) > _MOST_PARTS else ""
    listed = f'<div class="scroll">{_parts(parts[:_MOST_PARTS])}</div>{more}'
    yield section("Parts", f"<details><summary>{len(parts):,} committed</summary>{listed}</details>", wide=True)
    yield section("Made from", f'<div class="facts">{table([], _facts(report))}</div>', wide=True)


def _head(report: Mapping[str, Any], title: str) -> str:
    reason = f'<p class="bad">{escape(report["reason"])}</p>' if report["reason"] else ""
    when = f"{moment(report['started'])} to {moment(report['ended']) if report['ended'] else 'now'}"
    state = f'<span class="state {_STATES.get(report["status"], "bad")}">{escape(report["status"])}</span>'
    return (
        f'<header class="wide"><h1>{escape(title)}{state}</h1><p class="soft">{escape(when)}</p>{reason}'
        f"{numbers(key_numbers(report).items())}</header>\n"
    )


def key_numbers(report: Mapping[str, Any]) -> dict[str, str]:
    """Return the most important numbers, by name."""
    rows, share = report["rows"], report["session_run_share"]
    return {
        "committed": f"{rows['committed']:,}",
        "failed": f"{rows['failed']:,}",
        "skipped": f"{rows['skipped']:,}",
        "rows per second": charts.number(rate_of(report)),
        **_texts(report.get("written")),
        "in all runs": charts.duration(report["seconds_of_all_runs"]),
        "of the time in session.run": "-" if share is None else f"{share:.0%}",
        "peak memory": _size(report["peak_memory_bytes"]),
    }


def _texts(written: Mapping[str, Any] | None) -> dict[str, str]:
    """Return what a job that writes has written, and why its texts ended; nothing of other jobs."""
    if not written:
        return {}
    reasons = {name: written[name] for name in ("end", "stop", "length", "context") if name in written}
    texts = sum(reasons.values()) or 1
    return {
        "tokens per second": charts.number(written["tokens_a_second"] or 0),
        "tokens of a text": charts.number(written["tokens"] / texts),
        "tokens of a prompt": charts.number(written["input_tokens"] / texts),
        "tokens written": f"{written['tokens']:,}",
        "tokens read": f"{written['input_tokens']:,}",
        "texts ended by": ", ".join(f"{name} {count:,}" for name, count in reasons.items()),
    }


def rate_of(report: Mapping[str, Any]) -> float:
    """Return rows by seconds, over all runs."""
    seconds = float(report["seconds_of_all_runs"])
    return report["rows"]["input"] / seconds if seconds else 0.0


def rates(report: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Return rows per second over time: between samples, or between commits if there are few samples."""
    samples = [(one[0], one[1]) for one in report.get("samples", ())]
    points = samples if len(samples) > len(report["timeline"]) else [(one[0], one[1]) for one in report["timeline"]]
    step = math.ceil(len(points) / _MOST_STRIPS) or 1
    thinned = [(0.0, 0.0), *points[step - 1 :: step]]
    between = ((one, other) for one, other in pairwise(thinned) if other[0] > one[0])
    return [(after[0], max(after[1] - before[1], 0) / (after[0] - before[0])) for before, after in between]


def throughput(report: Mapping[str, Any], *, end: float | None = None, top: float | None = None) -> str:
    """Return rows per second over time, with commits as ticks and events as lines."""
    points = rates(report)
    if not points:
        return soft("Nothing was committed yet.")
    last = max(end or 0, report["seconds_of_all_runs"], points[-1][0])
    return charts.plot(
        [Curve(name="", points=[(0.0, points[0][1]), *points], color=COLORS[0])],
        ("s", "/s"),
        end=last,
        top=top,
        marks=[second for second, _ in report["timeline"]],
        events=[(second, text) for second, text in report.get("events", ())],
    )


def latencies(run: Mapping[str, Any], edges: tuple[float, float] | None = None) -> str:
    """Return how many runs took how long, in steps of a quarter of an octave, with percentiles."""
    bars = quarters(run["buckets"])
    if not bars:
        return soft("Nothing was measured.")
    runs = sum(count for _, count in bars)
    lines = [(name, run[name]) for name, least in _RUNS_OF.items() if run.get(name) is not None and runs >= least]
    return charts.histogram(bars, lines, edges or edges_of(bars))


def edges_of(bars: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the lower edge of the first bar and the upper one of the last, at least an octave apart."""
    low, high = bars[0][0] * 2**-0.25, bars[-1][0]
    return low, max(high, 2 * low)


def quarters(buckets: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Return the buckets, by their upper edge in seconds, as quarters of an octave."""
    merged: Counter[int] = Counter()
    for upper, count in buckets:
        merged[math.ceil(round(math.log2(upper) * 32) / 8)] += int(count)
    return [(2 ** (step / 4), float(count)) for step, count in sorted(merged.items())]


def stages(by_name: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the stages as shares of their sum, and their processor time."""
    parts = [(name, stage["seconds"], charts.duration(stage["seconds"])) for name, stage in by_name.items()]
    if not sum(size for _, size, _ in parts):
        return soft("Nothing was measured.")
    cpu = [(name, stage["cpu_seconds"], charts.duration(stage["cpu_seconds"])) for name, stage in by_name.items()]
    used = f"<h3>Processor time by stage</h3>{charts.shares(cpu)}"
    return charts.shares(parts) + (used if sum(size for _, size, _ in cpu) else "")


def memory(report: Mapping[str, Any], *, end: float | None = None, top: float | None = None) -> str:
    """Return the resident set over time, with its peak, the forecast and the limit; below it, by stage."""
    known = report["memory"]
    points = [(second, taken / 2**20) for second, _, taken in report.get("samples", ()) if taken is not None]
    last = max(end or 0, points[-1][0] if points else 0)
    levels = {
        "peak": (report["peak_memory_bytes"], COLORS[5]),
        "predicted": (known["predicted_bytes"], COLORS[2]),
        "limit": (known["limit_bytes"], "var(--bad)"),
    }
    drawn = [
        Curve(name=f"{name} {_size(size)}", points=[(0, size / 2**20), (last, size / 2**20)], color=color, level=True)
        for name, (size, color) in levels.items()
        if size
    ]
    resident = [Curve(name="resident", points=points, color=COLORS[0])]
    plot = charts.plot([*resident, *drawn], ("s", " MiB"), end=last, top=top) if len(points) > 1 else ""
    said = "".join(f'<p class="bad">{escape(text)}.</p>' for text in known.get("told", ()))
    return said + (plot or _levels(levels)) + _by_stage(known["by_stage"])


def most_memory(report: Mapping[str, Any]) -> float:
    """Return the most memory that its plot shows, in MiB."""
    known = report["memory"]
    sizes = (report["peak_memory_bytes"], known["predicted_bytes"], known["limit_bytes"])
    return max(size or 0 for size in sizes) / 2**20


def _levels(levels: Mapping[str, tuple[int | None, str]]) -> str:
    return numbers((name, _size(size)) for name, (size, _) in levels.items() if size)


def _by_stage(stages_: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [
        [name.replace("_", " "), _size(taken["resident_bytes"]), _size(taken["peak_bytes"])]
        for name, taken in stages_.items()
    ]
    return table(["after", "resident", "peak"], rows, numbers=(1, 2))


def placement(report: Mapping[str, Any]) -> str:
    """Return the nodes of each model by provider, as a bar."""
    placed = {report["model"]["name"]: report["placement"]}
    placed = {name: one["placement"] for name, one in report.get("components", {}).items()} or placed
    bars = "".join(
        (f"<h3>{escape(name)}</h3>" if len(placed) > 1 else "")
        + charts.shares([(provider, float(count), _nodes(count)) for provider, count in sorted(nodes.items())])
        for name, nodes in placed.items()
        if any(nodes.values())
    )
    passed = "".join(
        soft(f"Session {name} was passed over: {why}") for name, why in report["sessions_passed_over"].items()
    )
    return (bars or soft("No nodes are known.")) + passed


def _nodes(count: int) -> str:
    return f"{count:,} node{'' if count == 1 else 's'}"


def _failures(counts: Mapping[str, Mapping[str, int]], shown: Illustrations) -> str:
    """Return the numbers by stage and code, and the rows with their reasons."""
    found = failure_counts(counts)
    if not found:
        return soft("None.")
    text = numbers(found)
    if shown.failed:
        rows = [[_cell(row.get(name)) for name in FAILED_COLUMNS] for row in shown.failed]
        more = shown.failed_rows - len(rows)
        rest = soft(f"And {more:,} more, in _failed.jsonl.") if more > 0 else ""
        text += searchable("Search failed rows", table(FAILED_COLUMNS, rows, numbers=(0,))) + rest
    return text


def failure_counts(counts: Mapping[str, Mapping[str, int]]) -> list[tuple[str, str]]:
    """Return the numbers of failed rows by stage and code, as text."""
    return [(f"{stage}: {code}", f"{n:,}") for stage, codes in counts.items() for code, n in codes.items()]


def _cell(value: Any) -> str:
    return "" if value is None else str(value)


def _example(one: Example) -> str:
    picture = _picture(one.picture) if one.picture is not None else ""
    sound = f"{charts.waveform(one.envelope)}{soft(f'{one.seconds:.2f} s')}" if one.envelope else ""
    values = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in one.values.items())
    return f"<figure><figcaption>{escape(one.name)}</figcaption>{picture}{sound}<dl>{values}</dl></figure>"


def _picture(one: Picture) -> str:
    """Return a picture with outlines; SVG puts both into one system of coordinates, the picture's own pixels."""
    size = max(one.width, one.height) / 18
    drawn = "".join(
        f'<polygon points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in outline)}" fill="none" '
        f'stroke="{COLORS[(place + 1) % 6]}" stroke-width="2" vector-effect="non-scaling-stroke"/>'
        + _label(label, outline[0], size, COLORS[(place + 1) % 6])
        for place, (outline, label) in enumerate(zip(one.outlines, one.labels, strict=True))
    )
    return (
        f'<svg class="picture" viewBox="0 0 {one.width:g} {one.height:g}" role="img">'
        f'<image href="{one.url}" width="{one.width:g}" height="{one.height:g}" style="image-rendering:'
        f'{"pixelated" if one.url.startswith("data:image/png") else "auto"}"/>{drawn}</svg>'
    )


def _label(text: str, at: tuple[float, float], size: float, color: str) -> str:
    if not text:
        return ""
    x, y = at
    style = f"font:600 {size:.1f}px system-ui;paint-order:stroke;stroke:#000a;stroke-width:{size / 6:.1f}px"
    return f'<text x="{x:.1f}" y="{max(y - size / 4, size):.1f}" fill="{color}" style="{style}">{escape(text)}</text>'


def _sessions(sessions: Iterable[Mapping[str, Any]]) -> str:
    rows = [
        [
            f"{one['session']} #{one['instance']}{' on ' + one['worker'] if 'worker' in one else ''}",
            ", ".join(f"{name} {count}" for name, count in one["placement"].items()),
            f"{one['batches']:,}",
            f"{one['rows']:,}",
            one["failure"] or "",
        ]
        for one in sessions
    ]
    return table(["session", "nodes by provider", "runs", "rows", ""], rows, numbers=(2, 3))


def _parts(parts: Iterable[Mapping[str, Any]]) -> str:
    rows = [
        [one["file"] or "-", *(f"{one[name]:,}" for name in ("committed", "failed", "bytes")), one["sha256"] or ""]
        for one in parts
    ]
    return table(["file", "committed", "failed", "bytes", "SHA-256"], rows, numbers=(1, 2, 3))


def _facts(report: Mapping[str, Any]) -> list[list[str]]:
    return [
        ["plan", report["plan"]],
        ["manifest", report["manifest"]],
        ["model", f"{report['model']['name']} {report['model']['sha256']}"],
        ["run", report["run"]],
        *([name, value] for name, value in invocation(report).items()),
        *([name, version] for name, version in report["versions"].items()),
    ]


def invocation(report: Mapping[str, Any]) -> dict[str, str]:
    """Return what the command line said, by name; empty for a report of an ortdeploy that did not note it."""
    said = report.get("invocation")
    if said is None:
        return {}
    return {
        "command": command("ortdeploy", *said["arguments"]),
        "profile": f"{said['profile'] or 'none'}{_reason(said)}",
        "overlays": ", ".join(said["overlays"]) or "none",
        "--set": ", ".join(said["sets"]) or "none",
    }


def _reason(said: Mapping[str, Any]) -> str:
    choice = said.get("choice")
    return f" ({choice['reason']})" if choice else ""


def _size(number: float | None) -> str:
    return "-" if number is None else f"{number / 2**20:,.0f} MiB"
