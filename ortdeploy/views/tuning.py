"""The output of `ortdeploy tune`: a live line, a line for each trial, a table of all, and a page with bars."""

import time
from html import escape
from typing import TYPE_CHECKING

from ortdeploy.durations import clock
from ortdeploy.planning.overlay_search import AS_IT_IS, Bounds, noise
from ortdeploy.reports.page import page, section
from ortdeploy.terminal_text import printable, safe
from ortdeploy.units import format_size
from ortdeploy.views.live_line import Piece
from ortdeploy.views.text import BOLD, GREEN, WIDTH, painter, wrapped
from ortdeploy.views.tree import DIM

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from ortdeploy.planning.overlay_search import Setting, Trial

_NUMBER = 3  # columns of a trial's number
_LEAST = 24  # columns of the settings in a table


class SearchLine:
    """What the live line of a search shows: the trial that runs, how long it has, and the fastest speed so far."""

    def __init__(self, job: str, known: "Collection[Trial]") -> None:
        """Begin after the trials that are known from an earlier call."""
        self._job = printable(job)
        self.number = len(known)
        self._setting = ""
        self._fastest = max((trial.speed for trial in known), default=0.0)
        self._begin = time.monotonic()

    def begin(self, setting: "Setting") -> None:
        """Show the next trial."""
        self.number += 1
        self._setting, self._begin = setting.text, time.monotonic()

    def end(self, trial: "Trial") -> None:
        """Take the speed of a trial that has ended."""
        self._fastest = max(self._fastest, trial.speed)

    def pieces(self, ascii_only: bool) -> "Iterator[Piece]":  # noqa: ARG002  no sign of it is beyond ASCII
        """Yield what the line shows; a narrow one leaves out the time, then the fastest speed, then the settings."""
        yield Piece(text=f"tuning {self._job}", style="bold")
        yield Piece(text=f"trial {self.number}")
        yield Piece(text=printable(self._setting), rank=1)
        yield Piece(text=clock(time.monotonic() - self._begin), rank=3, style="cyan")
        if self._fastest:
            yield Piece(text=f"fastest {self._fastest:,.0f} rows/s", rank=2, style="green")


def render_numbered(number: int, trial: "Trial", width: "int | None") -> str:
    """Return the line of a trial that has ended, for a terminal of `width` columns; None: on one line."""
    first = f"{number:{_NUMBER}}  "
    text = safe(render_trial(trial))
    return f"{first}{text}\n" if width is None else wrapped(text, width, first=first, indent=" " * len(first))


def render_trial(trial: "Trial") -> str:
    """`batch 64: 12,345 rows/s, p99 3.2 ms, 143 MiB`, or why it was not run."""
    if trial.refused is not None:
        return f"{trial.setting.text}: refused: {trial.refused}"
    again = "" if trial.repeated is None else f", then {trial.repeated:,.0f}"
    return f"{trial.setting.text}: {trial.rows_per_second:,.0f} rows/s{again}, p99 {_p99(trial)}, {_memory(trial)}"


def _rate(trial: "Trial") -> str:
    return f"{trial.speed:,.0f}"


def _p99(trial: "Trial") -> str:
    return "-" if trial.p99 is None else f"{trial.p99 * 1000:.1f} ms"


def _memory(trial: "Trial") -> str:
    return "-" if trial.memory is None else format_size(trial.memory)


def render_table(
    trials: "Sequence[Trial]",
    best: "Trial | None",
    path: "str | None",
    *,
    color: bool,
    quiet: bool = False,
    width: "int | None" = None,
    bounds: Bounds | None = None,
) -> str:
    """Return the trials, fastest first, and the result; with `quiet`, the result only if there is none.

    `path` is that of the overlay, None if none was written: then no trial is marked. `width` is that of the terminal.
    """
    if quiet:
        return "" if best else f"{_outcome(best, trials, path)}\n"
    paint = painter(color=color)
    ran = sorted((one for one in trials if one.refused is None), key=lambda one: -one.speed)
    marked = best if path is not None else None
    rows = [("ROWS/S", "P99", "MEMORY", "SETTING")]
    rows += [(_rate(one), _p99(one), _memory(one), _setting(one, marked, bounds or Bounds())) for one in ran]
    rows += [("-", "-", "-", f"{one.setting.text}: {one.refused}") for one in trials if one.refused is not None]
    colors = [BOLD, *(GREEN if one is marked else "" for one in ran)]
    colors += [DIM] * (len(rows) - len(colors))
    shown = zip(_lines(rows, width), colors, strict=True)
    table = "".join(f"{paint(line, code) if code else line}\n" for lines, code in shown for line in lines.splitlines())
    return safe(table + wrapped(_outcome(best, trials, path), width or WIDTH))


def _setting(trial: "Trial", marked: "Trial | None", bounds: Bounds) -> str:
    """Return the settings of a trial, marked if they are written, or if they take more than they may."""
    if trial is marked:
        return f"* {trial.setting.text}"
    return trial.setting.text if bounds.allow(trial) else f"{trial.setting.text} (over the limit)"


def _lines(rows: "Sequence[tuple[str, str, str, str]]", width: "int | None") -> "Iterator[str]":
    """Yield each row below the other; narrow terminals get no memory, then no p99, and settings go on below."""
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    while width is not None and len(widths) > 1 and width - sum(widths) - 2 * len(widths) < _LEAST:
        del widths[-1]
    for row in rows:
        first = "".join(f"{cell:>{columns}}  " for cell, columns in zip(row[:3], widths, strict=False))
        indent = " " * (len(first) + 2)
        yield f"{first}{row[3]}\n" if width is None else wrapped(row[3], width, first=first, indent=indent)


def _outcome(best: "Trial | None", trials: "Sequence[Trial]", path: "str | None") -> str:
    if best is None:
        runs = any(one.refused is None for one in trials)
        return "No setting stays within the limits." if runs else "No setting can be run."
    if best.setting.text == AS_IT_IS:
        return "No other setting is clearly faster than the manifest's own, so nothing is written."
    differed = f"two tries of the same settings differed by up to {noise(trials):.0%}"
    if path is None:
        chance = f"{best.setting.text}: may be faster by chance alone, so nothing is written"
        return f"{chance}: {differed}. Longer trials tell: --seconds 30"
    return f"* written to {path}; {differed}{_saved(best, trials)}"


def _saved(best: "Trial", trials: "Sequence[Trial]") -> str:
    """Return what a setting means for the whole job: of few rows, the start alone can take longer than they do."""
    before = next((one for one in trials if one.setting.text == AS_IT_IS and one.refused is None), None)
    if best.rows is None or before is None or not (best.speed and before.speed):
        return ""
    took, takes = best.rows / before.speed, best.rows / best.speed
    return f". All {best.rows:,} rows take {takes:.2f} s instead of {took:.2f} s, besides the start"


def render_html(deployment: str, job: str, trials: "Sequence[Trial]", best: "Trial | None") -> str:
    """Return a page that loads nothing from the network: a bar for each trial, fastest first."""
    ran = sorted((one for one in trials if one.refused is None), key=lambda one: -one.speed)
    most = max((one.speed for one in ran), default=1.0) or 1.0
    body = "".join(
        f"<tr class={color}><td>{escape(one.setting.text)}</td>"
        f'<td><div class="shares"><i style="width:{one.speed / most:.1%};background:var(--{color})"></i></div></td>'
        f"<td class=n>{_rate(one)}</td><td class=n>{_p99(one)}</td><td class=n>{_memory(one)}</td></tr>"
        for one in ran
        for color in ["good" if one is best else "c0"]
    )
    head = '<tr><th>Setting<th style="width:40%"><th class=n>rows/s<th class=n>p99<th class=n>memory</tr>'
    refused = "".join(f"<li>{escape(render_trial(one))}</li>" for one in trials if one.refused is not None)
    title = f"{deployment}: settings of job {job}"
    return page(title, [section(title, f"<table>{head}{body}</table><ul>{refused}</ul>", wide=True)])
