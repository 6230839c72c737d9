"""The output of `ortdeploy try`: the results of a few rows as a table, and the spans found in recordings."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from ortdeploy.terminal_text import printable, shortened
from ortdeploy.views.text import BOLD, painter

_WIDEST = 40  # signs of a cell
_SHOWN = 4  # elements of a list
_FEWEST_EQUAL = 3
_AT = 0.5
"""A window of a recording counts from this probability on."""

Row = Mapping[str, Any]


def render_tryout(job: str, rows: Sequence[Row], failed: Sequence[Row], *, color: bool) -> str:
    """Return the rows of one job as a table, then the failed rows with their reasons."""
    paint = painter(color=color)
    lines = [paint(f"{printable(job)}: {_rows(len(rows))}", BOLD)]
    lines += [f"  {line}" for line in _table(rows)]
    return "\n".join(lines) + "\n" + render_failed(failed)


def render_texts(job: str, prompt: str, rows: Sequence[Row], failed: Sequence[Row], *, color: bool) -> str:
    """Return each prompt or recording of a job that writes with its text, then the failed rows with their reasons."""
    paint = painter(color=color)
    lines = [paint(f"{printable(job)}: {_rows(len(rows))}", BOLD)]
    for row in rows:
        ended = f"{row.get('tokens')} tokens, {row.get('finish_reason')}"
        given = row.get(prompt)
        read = row.get("path") or cell(given) if isinstance(given, list) else given
        lines += [
            f"  row {row.get('row')}: {printable(str(read))}",
            f"    -> {printable(str(row.get('text')))}",
        ]
        lines[-1] += f" ({ended})"
        times = (row.get(name) or () for name in ("begin", "end", "segments"))
        lines += [
            f"       {begin} to {end} s: {printable(str(text))}" for begin, end, text in zip(*times, strict=False)
        ]
    return "\n".join(lines) + "\n" + render_failed(failed)


def render_failed(failed: Sequence[Row]) -> str:
    """Return a line for each failed row, with its reason."""
    return "".join(f"  row {one.get('row')} failed: {printable(str(one.get('message', '')))}\n" for one in failed)


def is_hollow(rows: Sequence[Row], name: str) -> bool:
    """Return whether a result is a list without an item in all rows."""
    return bool(rows) and all(row.get(name) == [] for row in rows)


def is_null(rows: Sequence[Row], name: str) -> bool:
    """Return whether a result has no finite number in any row: JSON lines have null for NaN and infinities."""
    return bool(rows) and all(_is_null(row.get(name)) for row in rows)


def is_constant(rows: Sequence[Row], name: str) -> bool:
    """Return whether a result has the same floating numbers in several rows: those that differ rarely give that."""
    first = rows[0].get(name) if len(rows) >= _FEWEST_EQUAL else None
    return _is_odd_number(first) and all(row.get(name) == first for row in rows)


def _is_odd_number(value: Any) -> bool:
    """Return whether a value is a floating number that is no end of a range, or a list that holds one."""
    if isinstance(value, list):
        return any(map(_is_odd_number, value))
    return isinstance(value, float) and value not in {0.0, 1.0, -1.0}


def render_hollow(job: str, rows: Sequence[Row], key: Sequence[str], *, constant: bool = True) -> str:
    """Return a line for each result that holds nothing in any row, or (`constant`) the same numbers in all of them."""
    lines = []
    for name in result_names(rows, key):
        what = f"  {printable(name)} of job {printable(job)}"
        if is_hollow(rows, name):
            lines.append(f"{what} has no item in {_all(rows)}: rows are shorter than a window, or nothing was found.\n")
        elif is_null(rows, name):
            lines.append(f"{what} is NaN or infinite in {_all(rows)}: a value that feeds the model may be wrong.\n")
        elif constant and is_constant(rows, name):
            lines.append(f"{what} is equal in {_all(rows)}: unless they are alike, they do not reach the model.\n")
    return "".join(lines)


def result_names(rows: Sequence[Row], key: Sequence[str]) -> list[str]:
    """Return the names of results: all that is no key."""
    return [name for name in dict.fromkeys(name for row in rows for name in row) if name not in {*key, "row"}]


def _all(rows: Sequence[Row]) -> str:
    return "the one row" if len(rows) == 1 else f"all {len(rows)} rows"


def _is_null(value: Any) -> bool:
    """Return whether a value holds nothing but nulls, as which JSON lines have NaN and infinities."""
    return value is None or (isinstance(value, list) and bool(value) and all(map(_is_null, value)))


def _rows(number: int) -> str:
    return "1 row" if number == 1 else f"{number} rows"


def _table(rows: Sequence[Row]) -> Iterator[str]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    if not names:
        return
    cells = [[cell(row.get(name)) for name in names] for row in rows]
    shown = [printable(name) for name in names]
    widths = [max(len(line[place]) for line in [shown, *cells]) for place in range(len(names))]
    for line in [shown, ["-" * width for width in widths], *cells]:
        yield "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()


def cell(value: Any) -> str:
    """Return one value on one line: numbers with four digits, and of a list its first elements and its length."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return shortened(_list(value), _WIDEST)
    if isinstance(value, dict):
        return shortened(", ".join(f"{key}: {cell(one)}" for key, one in value.items()), _WIDEST)
    return shortened(printable(str(value)), _WIDEST)


def _list(value: list[Any]) -> str:
    if value and isinstance(value[0], list):
        first = ", ".join(map(cell, value[0][:_SHOWN]))
        return f"{len(value)} of [{first}{', …' if len(value[0]) > _SHOWN else ''}]"
    shown = ", ".join(map(cell, value[:_SHOWN]))
    return f"[{shown}]" if len(value) <= _SHOWN else f"[{shown}, … {len(value)}]"


def render_spans(rows: Sequence[Row], rate: int | None) -> str:
    """Return the spans of recordings in which the probability of windows is high; empty for other rows.

    `rate` is that of the samples which the model hears, if the plan tells; otherwise it is that of each row's file.
    """
    lines = []
    for row in rows:
        hz = rate or row.get("rate")
        for name, values in row.items():
            starts = row.get("start")
            if isinstance(hz, int) and is_probability(values) and isinstance(starts, list) and starts is not values:
                found = [f"{begin:.2f}-{end:.2f} s ({peak:.2f})" for begin, end, peak in spans(values, starts, hz)]
                of = printable(f"{name} of {row.get('path', row.get('row'))}")
                lines.append(f"  {of}: {', '.join(found) or 'none'}\n")
    return "".join(lines)


def is_probability(values: Any) -> bool:
    """Return whether a value is a list of numbers from 0 to 1, one for each window."""
    return isinstance(values, list) and all(
        isinstance(one, float) and math.isfinite(one) and 0 <= one <= 1 for one in map(_only, values)
    )


def _only(value: Any) -> Any:
    """Return the single element of a list, at any depth; any other value as it is."""
    return _only(value[0]) if isinstance(value, list) and len(value) == 1 else value


def spans(values: Sequence[Any], starts: Sequence[Any], rate: int) -> Iterator[tuple[float, float, float]]:
    """Yield begin and end in seconds, and the highest probability, of each run of windows with a high probability.

    `values` has a probability for each window, `starts` the first sample of each window; `rate` is in samples a second.
    """
    size = starts[1] - starts[0] if len(starts) > 1 else 0
    windows = zip(map(_only, values), starts, strict=False)
    for high, group in groupby(windows, key=lambda window: window[0] >= _AT):
        inside = list(group)
        if high:
            yield inside[0][1] / rate, (inside[-1][1] + size) / rate, max(one for one, _ in inside)
