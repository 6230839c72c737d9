"""Charts as SVG and HTML: curves over time, histograms, bars of shares, recordings.

Curves are stretched to the width of the page. Their labels are HTML beside them, so that they can be read on a phone.
"""

import math
from collections.abc import Iterator, Sequence
from html import escape

from msgspec import Struct

WIDE, HIGH = 1000, 300
"""The units of a plot's SVG."""

COLORS = tuple(f"var(--c{number})" for number in range(6))

Points = Sequence[tuple[float, float]]


class Curve(Struct, frozen=True, kw_only=True):
    """A line of points (x, y) by its name. A `level` is dashed, and nothing is below it."""

    name: str
    points: Points
    color: str
    level: bool = False


def ticks(value: float) -> list[float]:
    """Return round numbers at equal distances, from 0 to the first that is not below a value: three to five."""
    if value <= 0:
        return [0.0, 0.5, 1.0]
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    step = next(unit * one for one in (2, 2.5, 5, 10, 20, 25, 50) if unit * one * _MOST_STEPS >= value * (1 - 1e-9))
    return [step * one for one in range(max(2, math.ceil(value / step * (1 - 1e-9))) + 1)]


def durations_within(low: float, high: float) -> list[float]:
    """Return round durations in seconds between two of them: 1, 2 and 5 of each power of ten, or fewer if too many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1,)):
        found = [digit * 10.0**power for power in powers for digit in digits]
        found = [one for one in found if low <= one * (1 + 1e-9) and one <= high * (1 + 1e-9)]
        if len(found) <= _MOST_LABELS:
            break
    return found[:: math.ceil(len(found) / _MOST_LABELS)] if found else [low, high]


_MOST_STEPS, _MOST_LABELS = 4, 6


def plot(
    curves: Sequence[Curve],
    words: tuple[str, str],
    *,
    end: float | None = None,
    top: float | None = None,
    marks: Sequence[float] = (),
    events: Sequence[tuple[float, str]] = (),
) -> str:
    """Return curves over time. `words` are the unit of x and of y; `marks` are ticks on the x axis.

    `events` are dashed lines, numbered in a list below. `end` and `top` are the largest x and y, else from the curves.
    """
    points = [point for curve in curves for point in curve.points]
    last = end or max((x for x, _ in points), default=0) or 1.0
    levels = ticks(top or max((y for _, y in points), default=0))
    most = levels[-1]
    body = "".join(f'<path class="grid" d="M0 {HIGH * (1 - y / most):g} H{WIDE}"/>' for y in levels[1:])
    body += "".join(_curve(curve, last, most) for curve in curves)
    body += "".join(
        f'<path class="mark" d="M{WIDE * x / last:.1f} {HIGH} v-10"><title>{x:,.1f} {words[0]}</title></path>'
        for x in marks
    )
    body += "".join(
        f'<path class="event" d="M{WIDE * x / last:.1f} 0 V{HIGH}"><title>{escape(text)}</title></path>'
        for x, text in events
    )
    body += "".join(_hits(curves, last, words))
    sides = "".join(f"<span>{number(y)}{words[1]}</span>" for y in reversed(levels))
    below = _below([(x / last, f"{number(x)} {words[0]}") for x in ticks(last) if x <= last])
    return (
        f'<figure class="plot"><div class="y">{sides}</div>'
        f'<svg viewBox="0 0 {WIDE} {HIGH}" preserveAspectRatio="none" role="img">{body}</svg>'
        f'<div class="x">{below}</div></figure>{_key(curves)}{_events(events, words[0])}'
    )


def _below(labels: Sequence[tuple[float, str]]) -> str:
    """Return the labels of the x axis: where each stands, as a share of the width, and its text."""
    return "".join(f'<span class="{_side(share)}" style="left:{share:.2%}">{text}</span>' for share, text in labels)


def _side(share: float) -> str:
    """Return to which side of its place a label is moved, so that it stays in the page."""
    return "start" if share < 0.05 else "end" if share > 0.95 else ""  # noqa: PLR2004  half a label


def _curve(curve: Curve, last: float, most: float) -> str:
    way = [f"{WIDE * x / last:.1f},{HIGH * (1 - min(y / most, 1)):.1f}" for x, y in curve.points]
    if not way:
        return ""
    line = f'<polyline class="line{" dash" if curve.level else ""}" stroke="{curve.color}" points="{" ".join(way)}"/>'
    if curve.level:
        return line
    first, end = (point.partition(",")[0] for point in (way[0], way[-1]))
    return f'<polygon class="area" fill="{curve.color}" points="{first},{HIGH} {" ".join(way)} {end},{HIGH}"/>{line}'


def _hits(curves: Sequence[Curve], last: float, words: tuple[str, str]) -> Iterator[str]:
    """Yield invisible strips, each of which shows a value of the first curve under the pointer."""
    points = next((curve.points for curve in curves if not curve.level), ())
    before = 0.0
    for x, y in points:
        wide = WIDE * (x - before) / last
        if wide > 0:
            yield (
                f'<rect class="hit" x="{WIDE * before / last:.1f}" y="0" width="{wide:.1f}" height="{HIGH}">'
                f"<title>{number(x)} {words[0]}: {number(y)}{words[1]}</title></rect>"
            )
        before = x


def _key(curves: Sequence[Curve]) -> str:
    named = [curve for curve in curves if curve.name]
    items = "".join(f'<li><i style="background:{curve.color}"></i>{escape(curve.name)}</li>' for curve in named)
    return f'<ul class="key">{items}</ul>' if items else ""


def _events(events: Sequence[tuple[float, str]], unit: str) -> str:
    items = "".join(f"<li>{number(x)} {unit}: {escape(text)}</li>" for x, text in events)
    return f'<ul class="key">{items}</ul>' if items else ""


def histogram(bars: Points, lines: Sequence[tuple[str, float]], edges: tuple[float, float]) -> str:
    """Return bars (upper edge in seconds, count) over a logarithmic axis, with percentiles as lines.

    Each bar begins where the one before it may end: a quarter of an octave below its upper edge.
    """
    low, high = (math.log2(edge) for edge in edges)
    most = max(count for _, count in bars)

    def place(seconds: float) -> float:
        return WIDE * min(max((math.log2(seconds) - low) / (high - low), 0), 1)

    body = "".join(
        f'<rect class="bar" fill="{COLORS[0]}" x="{place(upper * 2**-0.25):.1f}" y="{HIGH * (1 - count / most):.1f}" '
        f'width="{max(place(upper) - place(upper * 2**-0.25) - 1, 1):.1f}" height="{HIGH * count / most:.1f}">'
        f"<title>up to {duration(upper)}: {count:,.0f}</title></rect>"
        for upper, count in bars
    )
    body += "".join(
        f'<path class="line dash" stroke="{COLORS[at % 5 + 1]}" d="M{place(seconds):.1f} 0 V{HIGH}">'
        f"<title>{escape(name)}: {duration(seconds)}</title></path>"
        for at, (name, seconds) in enumerate(lines)
    )
    below = _below([(place(one) / WIDE, duration(one)) for one in durations_within(*edges)])
    key = "".join(
        f'<li><i style="background:{COLORS[at % 5 + 1]}"></i>{escape(name)} {duration(seconds)}</li>'
        for at, (name, seconds) in enumerate(lines)
    )
    return (
        f'<figure class="plot"><div class="y"><span>{number(most)}</span><span>0</span></div>'
        f'<svg viewBox="0 0 {WIDE} {HIGH}" preserveAspectRatio="none" role="img">{body}</svg>'
        f'<div class="x">{below}</div></figure><ul class="key">{key}</ul>'
    )


def shares(parts: Sequence[tuple[str, float, str]]) -> str:
    """Return one bar of shares; each part has a name, a size and a text."""
    whole = sum(size for _, size, _ in parts) or 1.0
    bar = "".join(
        f'<i style="width:{size / whole:.2%};background:{COLORS[at % 6]}" title="{escape(f"{name}: {text}")}"></i>'
        for at, (name, size, text) in enumerate(parts)
    )
    key = "".join(
        f'<li><i style="background:{COLORS[at % 6]}"></i>{escape(name)} {size / whole:.0%}, {escape(text)}</li>'
        for at, (name, size, text) in enumerate(parts)
    )
    return f'<div class="shares">{bar}</div><ul class="key">{key}</ul>'


def waveform(envelope: Sequence[tuple[float, float]]) -> str:
    """Return the waveform of a recording, from the smallest and the largest sample of each of its pieces."""
    most = max((max(abs(low), abs(high)) for low, high in envelope), default=0) or 1.0
    way = "".join(
        f"M{place + 0.5} {50 - 48 * high / most:.1f}V{50 - 48 * low / most + 0.6:.1f}"
        for place, (low, high) in enumerate(envelope)
    )
    line = f'fill="none" stroke="{COLORS[0]}" stroke-width="1.5" vector-effect="non-scaling-stroke"'
    return (
        f'<svg class="sound" viewBox="0 0 {len(envelope)} 100" preserveAspectRatio="none" role="img">'
        f'<path d="{way}" {line}/></svg>'
    )


def number(value: float) -> str:
    """Return a number in four significant digits, as short as it may be: 1,234 or 0.25."""
    if not value:
        return "0"
    rounded = round(value, 3 - math.floor(math.log10(abs(value))))
    return f"{rounded:,.0f}" if abs(rounded) >= 1000 or rounded == round(rounded) else f"{rounded:.4g}"  # noqa: PLR2004


def duration(seconds: float) -> str:
    """Return a duration in four significant digits, with its unit."""
    for unit, size in _UNITS:
        if seconds >= size:
            return f"{number(seconds / size)} {unit}"
    return f"{number(seconds / 1e-9)} ns" if seconds else "0 s"


_UNITS = (("h", 3600.0), ("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))
