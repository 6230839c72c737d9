"""`ortdeploy fleet --report`: the rows as one self-contained page."""

from collections.abc import Sequence
from html import escape

from ortdeploy.durations import moment
from ortdeploy.facts.variants import shown_fact
from ortdeploy.fleet.rows import Row
from ortdeploy.reports.page import numbers, page, searchable, section, soft, table
from ortdeploy.state.looks import moment_of
from ortdeploy.views.fleet import cells_of, counts

_NUMBERS = (5, 6, 7)
_LABELS, _JOBS, _LONGEST, _WHY = 3, 500, 60, 1000


def render_page(rows: Sequence[Row], now: float) -> str:
    """Return the page; `now` is in seconds since 1970."""
    well = sum(not row.wrong for row in rows)
    state = f'<span class="state {"good" if well == len(rows) else "bad"}">{well} of {len(rows)} well</span>'
    head = f'<header class="wide"><h1>Fleet{state}</h1>{soft(f"as of {moment(moment_of(now))}")}'
    figures = numbers((word, f"{number:,}") for word, number in counts(rows).items())
    return page("Fleet", [f"{head}{figures}</header>\n", _deployments(rows), _jobs(rows)])


def _deployments(rows: Sequence[Row]) -> str:
    names = ["Device", "Deployment", "State", "Version", "Profile", "Committed", "Failed", "Waiting", "Last look"]
    cells = [
        [*(text or "-" for text in cells_of(row).values()), _decided(row), _labels(row), "; ".join(row.why)[:_WHY]]
        for row in rows
    ]
    return section(
        "Deployments",
        searchable("Deployments", table([*names, "Profile by", "Labels", "Why"], cells, _NUMBERS)),
        wide=True,
    )


def _decided(row: Row) -> str:
    """Return the facts that decided the profile, and since when."""
    if row.document is None or row.document.profile.reason is None:
        return ""
    profile = row.document.profile
    facts = [f"{name}: {shown_fact(name, value)}"[:_LONGEST] for name, value in sorted(profile.facts.items())]
    return "; ".join([*facts[:_LABELS], f"since {moment(profile.since)}"])


def _labels(row: Row) -> str:
    labels = row.document.device.labels if row.document else {}
    return ", ".join(f"{key[:_LONGEST]}={value[:_LONGEST]}" for key, value in list(labels.items())[:_LABELS])


def _jobs(rows: Sequence[Row]) -> str:
    head = [
        "Device",
        "Deployment",
        "Job",
        "State",
        "Committed",
        "Failed",
        "Left",
        "Waiting",
        "Damaged parts",
        "Last row",
    ]
    cells = [
        [
            row.device[:_LONGEST],
            row.document.deployment[:_LONGEST],
            job.name[:_LONGEST],
            job.status[:_LONGEST],
            f"{job.committed:,}",
            f"{job.failed:,}",
            "-" if job.left is None else f"{job.left:,}",
            "-" if job.waiting is None else f"{job.waiting:,}",
            f"{job.damaged_parts:,}",
            "-" if job.last_row is None else moment(job.last_row),
        ]
        for row in rows
        if row.document is not None
        for job in row.document.jobs
    ]
    more = f"<p>{escape(f'The first {_JOBS:,} of {len(cells):,}.')}</p>" if len(cells) > _JOBS else ""
    shown = searchable("Jobs", table(head, cells[:_JOBS], (4, 5, 6, 7, 8)))
    return section("Jobs", shown + more, wide=True) if cells else ""
