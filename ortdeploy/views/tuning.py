"""The output of `ortdeploy tune`: a table of trials, and a page with bars."""

from html import escape
from typing import TYPE_CHECKING

from ortdeploy.tuning.search import AS_IT_IS, noise
from ortdeploy.units import format_size
from ortdeploy.views.text import BOLD, GREEN, painter, safe
from ortdeploy.views.tree import DIM

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ortdeploy.tuning.search import Trial

_STYLE = (
    "body{font:15px system-ui;margin:2rem;color:#222}table{border-collapse:collapse}td,th{padding:.3rem .8rem;"
    "text-align:left;border-bottom:1px solid #ddd}.bar{background:#4a7db5;height:.8rem}.best .bar{background:#2e8b57}"
    ".best{font-weight:600}td.n{text-align:right}"
)


_WIDTH = 100


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
    trials: "Sequence[Trial]", best: "Trial | None", path: "str | None", *, color: bool, quiet: bool = False
) -> str:
    """Return the trials, fastest first, and the result; with `quiet`, the result only if there is none.

    `path` is that of the overlay, None if none was written.
    """
    paint = painter(color=color)
    if quiet:
        return "" if best else f"{_outcome(best, trials, path)}\n"
    rows = [("ROWS/S", "P99", "MEMORY", "SETTING")]
    ran = sorted((one for one in trials if one.refused is None), key=lambda one: -one.speed)
    rows += [(_rate(one), _p99(one), _memory(one), one.setting.text + (" *" if one is best else "")) for one in ran]
    rows += [("-", "-", "-", f"{one.setting.text}: {one.refused}") for one in trials if one.refused is not None]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = ["  ".join([*map(str.rjust, row[:3], widths), row[3]]) for row in rows]
    colors = [BOLD, *(GREEN if one is best else "" for one in ran)]
    colors += [DIM] * (len(lines) - len(colors))
    lines = [paint(line, code) if code else line for line, code in zip(lines, colors, strict=True)]
    lines += _wrapped(_outcome(best, trials, path))
    return safe("".join(f"{line}\n" for line in lines))


def _outcome(best: "Trial | None", trials: "Sequence[Trial]", path: "str | None") -> str:
    if best is None:
        return "No setting stays within the limits."
    if best.setting.text == AS_IT_IS:
        return "* the manifest's own settings; nothing is written"
    differed = f"two tries of the same settings differed by up to {noise(trials):.0%}"
    if path is None:
        return f"* may be faster by chance alone, so nothing is written: {differed}. Longer trials tell: --seconds 30"
    return f"* written to {path}; {differed}{_saved(best, trials)}"


def _saved(best: "Trial", trials: "Sequence[Trial]") -> str:
    """Return what a setting means for the whole job: of few rows, the start alone can take longer than they do."""
    before = next((one for one in trials if one.setting.text == AS_IT_IS and one.refused is None), None)
    if best.rows is None or before is None or not (best.speed and before.speed):
        return ""
    took, takes = best.rows / before.speed, best.rows / best.speed
    return f". All {best.rows:,} rows take {takes:.2f} s instead of {took:.2f} s, besides the start"


def _wrapped(text: str) -> list[str]:
    import textwrap  # noqa: PLC0415  once, at the end

    return textwrap.wrap(text, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def render_html(deployment: str, job: str, trials: "Sequence[Trial]", best: "Trial | None") -> str:
    """Return a page that loads nothing from the network: a bar for each trial, fastest first."""
    ran = sorted((one for one in trials if one.refused is None), key=lambda one: -one.speed)
    most = max((one.speed for one in ran), default=1.0) or 1.0
    body = "".join(
        f"<tr{' class=best' if one is best else ''}><td>{escape(one.setting.text)}</td>"
        f'<td style="width:20rem"><div class=bar style="width:{one.speed / most:.1%}"></div></td>'
        f"<td class=n>{_rate(one)}</td><td class=n>{_p99(one)}</td><td class=n>{_memory(one)}</td></tr>"
        for one in ran
    )
    refused = "".join(f"<li>{escape(render_trial(one))}</li>" for one in trials if one.refused is not None)
    title = f"{escape(deployment)}: settings of job {escape(job)}"
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style>"
        f"<h1>{title}</h1>"
        f"<table><tr><th>Setting<th><th>rows/s<th>p99<th>memory</tr>{body}</table><ul>{refused}</ul></html>\n"
    )
