"""The output of `ortdeploy fleet`: a table of deployments, and a line for each thing that is wrong."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ortdeploy.durations import moment
from ortdeploy.fleet.document import Document
from ortdeploy.fleet.rows import BAD, Row
from ortdeploy.state.looks import moment_of
from ortdeploy.terminal_text import printable, safe, shortened
from ortdeploy.units import format_size
from ortdeploy.views.table import Cell, Column, render_columns
from ortdeploy.views.text import GREEN, RED, YELLOW, painter, wrapped

FORMAT_VERSION = 1
_LONGEST, _WHY = 60, 200
_COLUMNS = (
    Column(name="DEVICE", least=12),
    Column(name="DEPLOYMENT", least=12),
    Column(name="STATE"),
    Column(name="VERSION", rank=3),
    Column(name="PROFILE", rank=4, least=8),
    Column(name="COMMITTED", right=True, rank=5),
    Column(name="FAILED", right=True, rank=2),
    Column(name="WAITING", right=True, rank=1),
    Column(name="LAST LOOK", rank=3),
)
_COLORS = {"current": GREEN, "running": GREEN, "paused": YELLOW, "behind": YELLOW}
_ID = 12


def render_fleet(rows: Sequence[Row], *, color: bool = False, width: int | None = None) -> str:
    """Return the rows, what is wrong with each, and how many there are of each state."""
    paint = painter(color=color)
    shown = [{name: _cell(name, text) for name, text in cells_of(row).items()} for row in rows]
    table = render_columns(_COLUMNS, shown, paint, width)
    lines = [f"{name}: {why}" for row in rows for name, why in _complaints(row)]
    counted = ", ".join(f"{number} {state}" for state, number in counts(rows).items())
    text = safe("".join(f"{line}\n" for line in (*lines, f"{len(rows)} in all{': ' if counted else ''}{counted}")))
    return table + (text if width is None else "".join(wrapped(line, width) for line in text.splitlines()))


def _cell(name: str, text: str) -> Cell:
    code = _COLORS.get(text, RED) if name == "STATE" else ""
    return Cell(text=printable(text), code=code)


def _complaints(row: Row) -> list[tuple[str, str]]:
    name = row.device if row.document is None else f"{row.device}, {row.document.deployment}"
    damaged = sum(job.damaged_parts for job in row.document.jobs) if row.document else 0
    more = [f"{damaged} damaged part{'' if damaged == 1 else 's'}"] if damaged else []
    growing = (job for job in (row.document.jobs if row.document else ()) if job.memory_growth)
    more += [f"memory of job {job.name} grows by {format_size(job.memory_growth)} per 1,000 rows" for job in growing]
    return [(printable(shortened(name, _LONGEST)), printable(shortened(why, _WHY))) for why in (*row.why, *more)]


def counts(rows: Sequence[Row]) -> Mapping[str, int]:
    """Return how many rows have each state, and each thing that may be wrong; the worst come first."""
    found = Counter(word for row in rows for word in (row.wrong or (_state(row),)))
    return {word: found[word] for word in (*BAD, "paused", "running", "current") if found[word]}


def _state(row: Row) -> str:
    return row.document.state if row.document else "unreadable"


def cells_of(row: Row) -> dict[str, str]:
    """Return the cells of a row: what is wrong stands in the place of the state."""
    said = row.document
    numbers = ("", "", "") if said is None else _numbers(said)
    return {
        "DEVICE": shortened(row.device, _LONGEST),
        "DEPLOYMENT": shortened(said.deployment, _LONGEST) if said else "-",
        "STATE": ", ".join(row.wrong) or _state(row),
        "VERSION": _version(said) if said else "-",
        "PROFILE": shortened(said.profile.shown, _LONGEST) if said else "-",
        "COMMITTED": numbers[0],
        "FAILED": numbers[1],
        "WAITING": numbers[2],
        "LAST LOOK": "-" if row.seen is None else moment(moment_of(row.seen)),
    }


def _version(said: Document) -> str:
    """Return the version as people know it: a bundle's label or number, a commit, or the digest of a text."""
    version = said.version
    number = None if version.number is None else str(version.number)
    digest = version.commit or version.bundle or version.text_digest or ""
    return shortened(version.label or number or digest.removeprefix("sha256:")[:_ID] or "-", _LONGEST)


def _numbers(said: Document) -> tuple[str, str, str]:
    waiting = [job.waiting for job in said.jobs if job.waiting is not None]
    sums = (sum(job.committed for job in said.jobs), sum(job.failed for job in said.jobs))
    return f"{sums[0]:,}", f"{sums[1]:,}", f"{sum(waiting):,}" if waiting else "-"


def render_fleet_json(rows: Sequence[Row]) -> str:
    """Return the rows with their documents."""
    from msgspec import to_builtins  # noqa: PLC0415  only for JSON

    shown: list[dict[str, Any]] = [
        {
            "device": row.device,
            "deployment": row.document.deployment if row.document else None,
            "state": _state(row) if row.document else None,
            "wrong": list(row.wrong),
            "why": list(row.why),
            "seen": None if row.seen is None else moment_of(row.seen),
            "file": row.file,
            "document": to_builtins(row.document),
        }
        for row in rows
    ]
    return json.dumps({"format_version": FORMAT_VERSION, "rows": shown, "counts": counts(rows)}, indent=2) + "\n"
