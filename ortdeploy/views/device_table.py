"""What `ortdeploy plan` shows of many devices: a row for each device and job."""

import re
from collections.abc import Sequence
from typing import Any

from ortdeploy.planning.devices.device_table import Entry
from ortdeploy.terminal_text import plain, printable
from ortdeploy.units import format_size
from ortdeploy.views.table import Cell, Column, Row, render_columns
from ortdeploy.views.text import GREEN, RED, count, painter

_COLUMNS = (
    Column(name="DEVICE", least=10),
    Column(name="DEPLOYMENT", rank=3, least=10),
    Column(name="JOB", least=10),
    Column(name="PROFILE", rank=1, least=8),
    Column(name="PLAN"),
    Column(name="MEMORY", right=True, rank=2),
    Column(name="WHY", least=16),
)


def render_table(entries: Sequence[Entry], *, color: bool, width: int | None) -> str:
    """Return the table, and a line that counts; columns that say nothing are left out."""
    rows = [_row(one) for one in entries]
    several = len({one.manifest for one in entries}) > 1
    silent = {name for name in ("PROFILE", "WHY") if all(row[name].text in {"", "-"} for row in rows)}
    silent |= set() if several else {"DEPLOYMENT"}
    table = render_columns([one for one in _COLUMNS if one.name not in silent], rows, painter(color=color), width)
    refused = sum(one.refused is not None for one in entries)
    devices = count(len({one.device for one in entries}), "device")
    return f"{table}Planned for {devices}: {len(entries) - refused} run, {refused} refused.\n"


def _row(one: Entry) -> Row:
    texts = {
        "DEVICE": one.device,
        "DEPLOYMENT": one.deployment,
        "JOB": one.job,
        "PROFILE": "-" if one.choice is None else one.choice.name or "base",
        "MEMORY": "" if one.memory is None else format_size(one.memory),
        "WHY": _why(one),
    }
    state = Cell(text="runs", code=GREEN) if one.refused is None else Cell(text="refused", code=RED)
    return {**{name: Cell(text=printable(text)) for name, text in texts.items()}, "PLAN": state}


def _why(one: Entry) -> str:
    span = None if one.refused is None else one.refused.span
    return "" if span is None or one.refused is None else f"{one.refused.rule} {span.path}:{span.line}"


def render_markdown(entries: Sequence[Entry]) -> str:
    """Return the table in Markdown, as the summary of a workflow shows it."""
    lines = [("Device", "Job", "Profile", "Plan"), ("---",) * 4]
    for one in entries:
        profile = "" if one.choice is None else one.choice.shown
        memory = "" if one.memory is None else f", {format_size(one.memory)}"
        state = f"runs{memory}" if one.refused is None else f"refused: {_why(one)}"
        lines.append((one.device, f"{one.deployment}: {one.job}", profile, state))
    return "".join(f"| {' | '.join(map(_as_text, line))} |\n" for line in lines)


def _as_text(text: str) -> str:
    """Return a text that Markdown shows as it is: names come from whoever opened the pull request."""
    return re.sub(r"([\\`*\[\]<>|~])", r"\\\1", plain(text))


def as_json(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Return the rows as JSON values."""
    return [
        {
            "device": one.device,
            "deployment": one.deployment,
            "manifest": one.manifest,
            "job": one.job,
            "profile": None if one.choice is None else {"name": one.choice.name, "reason": one.choice.reason},
            "runs": one.refused is None,
            "memory_bytes": one.memory,
            "refused": None
            if one.refused is None
            else {"rule": one.refused.rule, "path": one.refused.span.path, "line": one.refused.span.line},
        }
        for one in entries
    ]
