"""The output of `ortdeploy status`: a table of jobs, and lines about what runs, waits or is shared."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ortdeploy.durations import moment
from ortdeploy.terminal_text import printable, safe
from ortdeploy.units import format_size
from ortdeploy.views.status_model import JobStatus
from ortdeploy.views.table import Cell, Column, Row, render_columns
from ortdeploy.views.text import (
    GREEN,
    MOST_FILES,
    RED,
    YELLOW,
    count,
    more_rows,
    painter,
    render_shares,
    some_of,
    wrapped,
)

if TYPE_CHECKING:
    from ortdeploy.facts.variants import Choice
    from ortdeploy.planning.refused_applies import Refusal

_COLORS = {"done": GREEN, "running": GREEN, "paused": YELLOW, "never run": "", "stopped": YELLOW, "unfinished": YELLOW}
_COLUMNS = (
    Column(name="DEPLOYMENT", rank=2, least=16),
    Column(name="JOB", least=12),
    Column(name="STATE"),
    Column(name="COMMITTED", right=True),
    Column(name="FAILED", right=True, rank=1),
    Column(name="SKIPPED", right=True, rank=5),
    Column(name="OUTPUT", rank=4, least=16),
    Column(name="LAST RUN", rank=3),
)


def render_status(
    jobs: Sequence[JobStatus],
    refusals: "Sequence[Refusal]" = (),
    profiles: "Mapping[str, Choice]" = MappingProxyType({}),
    *,
    verbose: bool = False,
    color: bool = False,
    width: int | None = None,
) -> str:
    """Return a row for each job, and lines about what runs, waits or is shared; with `verbose`, also its parts.

    Refused manifests come last, behind the profiles of those that have one. `width` is that of the terminal.
    """
    several = len({one.deployment for one in jobs}) > 1
    columns = [column for column in _COLUMNS if several or column.name != "DEPLOYMENT"]
    table = render_columns(columns, [_row(one) for one in jobs], painter(color=color), width)
    told = [
        *_lines(jobs, verbose=verbose),
        *(f"{path}: profile {one.shown} since {one.since}" for path, one in profiles.items()),
        *(one.text for one in refusals),
    ]
    lines = safe("".join(f"{line}\n" for line in told))
    if width is not None:
        lines = "".join(wrapped(line, width) for line in lines.splitlines())
    return table + lines


def _row(one: JobStatus) -> Row:
    """Return the cells of a job: names, state, rows, and when its last run ended, or began if it has not."""
    record = one.record
    state = one.state.replace("-", " ")
    texts = {
        "DEPLOYMENT": one.deployment,
        "JOB": one.job,
        "COMMITTED": f"{record.committed:,}" if record else "0",
        "FAILED": f"{one.failed:,}",
        "SKIPPED": f"{record.skipped:,}" if record else "0",
        "OUTPUT": one.output,
        "LAST RUN": moment(record.ended or record.started) if record else "-",
    }
    cells = {name: Cell(text=printable(text)) for name, text in texts.items()}
    failed = Cell(text=texts["FAILED"], code=RED if one.failed else "")
    return {**cells, "STATE": Cell(text=state, code=_COLORS.get(state, RED)), "FAILED": failed}


def _lines(jobs: Sequence[JobStatus], *, verbose: bool) -> Iterator[str]:
    yield from (_render_live(one.job, one.live) for one in jobs if one.live)
    yield from (f"{one.job}: {one.record.reason}" for one in jobs if one.record and one.record.reason and not one.live)
    for one in jobs:
        yield from render_shares(one.job, one.shares)
    finished = "all parts are there, and ortdeploy finish puts them into the ledger"
    yield from (f"{one.job}: {finished}" for one in jobs if one.shares and not one.shares.left)
    yield from (f"{one.job}: how far shards are is not known: {one.unread}" for one in jobs if one.unread)
    yield from (f"{one.job}: {more_rows(one.kept)} kept for the next run" for one in jobs if one.kept)
    yield from (f"{one.job}: not as expected: {why}" for one in jobs for why in one.missed)
    yield from (f"{one.job}: {told}" for one in jobs for told in one.memory)
    yield from (_render_failed_outside(one.job, one.failed_outside) for one in jobs if one.failed_outside)
    yield from (f"{one.job}: {count(one.rerun, 'row')} of changed files to run again" for one in jobs if one.rerun)
    for one in jobs:
        yield from _render_damaged(one, verbose=verbose)
    for one in jobs:
        if one.leaving:
            yield f"{one.job}: {count(one.leaving, 'row')} of changed files to leave their parts"
    for one in jobs:
        if one.held_up_by:
            yield (
                f"{one.job}: parts older than keep are not forgotten while {one.held_up_by} is there, or its folder is "
                "missing or empty, like that of a device that is not mounted"
            )
    for one in jobs:
        yield from _render_delivered(one, verbose=verbose)
    for one in jobs:
        for part in one.record.parts if one.record and verbose else ():
            yield f"{one.output}/{part.file}: {count(part.rows, 'row')} from {part.start:,}"


def _render_failed_outside(job: str, rows: int) -> str:
    what = f"{count(rows, 'failed row')} {'is' if rows == 1 else 'are'}"
    return f"{job}: {what} in no committed part: repair or remove what failed, and apply goes on"


def _render_damaged(one: JobStatus, *, verbose: bool) -> Iterator[str]:
    """Yield which parts are not as they were written: plan and verify refuse them."""
    if one.damaged:
        shown = some_of(
            [f"{file} {how}" for file, how in one.damaged.items()], len(one.damaged) if verbose else MOST_FILES
        )
        yield f"{one.job}: {count(len(one.damaged), 'part')} not as committed, which the next apply refuses: {shown}"


def _render_delivered(one: JobStatus, *, verbose: bool) -> Iterator[str]:
    """Yield the files of a job that its readers still need, and those that may be carried away."""
    needed: dict[tuple[str, ...], list[str]] = {}
    for one_file in one.delivered:
        needed.setdefault(one_file.needed_by, []).append(one_file.file)
    free = needed.pop((), [])
    most = len(one.delivered) if verbose else MOST_FILES
    for jobs, names in needed.items():
        what = f"{count(len(names), 'file')}: {some_of(names, most)}"
        yield f"{one.job}: {' and '.join(jobs)} still {_needs(jobs)} {what}"
    if one.removable and free:
        yield f"{one.job}: {count(len(free), 'file')} may be carried away, every reader has them: {some_of(free, most)}"


def _needs(jobs: Sequence[str]) -> str:
    return "needs" if len(jobs) == 1 else "need"


def _render_live(job: str, live: Mapping[str, Any]) -> str:
    total = "" if live["total"] is None else f" of {live['total']:,}"
    left = "" if live["seconds_left"] is None else f", {live['seconds_left']:,} s left"
    rate = (
        f", {live['rows_per_second']:,.0f} rows/s" if live["rows_per_second"] else ""
    )  # not known in the first second
    used = "".join(f", {word}" for word in _used(live))
    return f"{job}: {live['done']:,}{total} rows, {live['failed']:,} failed{rate}{left}{used}"


def _used(live: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a running job uses, if the system reports it: memory, processors, page faults, context switches."""
    if live.get("resident_bytes"):
        peak = f" (peak {format_size(live['peak_bytes'])})" if live.get("peak_bytes") else ""
        yield f"{format_size(live['resident_bytes'])} of memory{peak}"
    if "cpu_seconds_user" in live and live["seconds"]:
        yield f"{(live['cpu_seconds_user'] + live['cpu_seconds_system']) / live['seconds']:.1f} cores"
        yield f"{live['major_faults']:,.0f} major faults"
        yield f"{live['involuntary_switches']:,.0f} involuntary switches"
