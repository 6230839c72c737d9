"""Finds the input files of a job that reads another job's rows: those that the other one has committed by now.

A plan cannot name them, because the other job may run first. The ledger says what it has committed, and which of that
this job has read.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.events import log
from ortdeploy.facts.data import InputFacts, KnownFile
from ortdeploy.files.digest_cache import DigestCache
from ortdeploy.jobs.ending import Ending
from ortdeploy.jobs.job_context import JobContext
from ortdeploy.jobs.rerun import take_out
from ortdeploy.ledger.changes import as_spans
from ortdeploy.ledger.integrity import GONE_FILE, difference
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.published_files import PublishedFile, deliveries, unread
from ortdeploy.ledger.records import OutputRecord
from ortdeploy.ledger.stale_rows import superseded_rows
from ortdeploy.parts.settled import standing_output
from ortdeploy.plan.steps import RunJob, UpstreamJob
from ortdeploy.results.results import Status
from ortdeploy.sinks.catalogue import SINKS
from ortdeploy.sinks.settled import settled_types
from ortdeploy.sources.catalogue import look_at
from ortdeploy.sources.files import full_path, shown

_ENDED_WELL = frozenset({Status.DONE, Status.PAUSED, Status.NOTHING_TO_DO})


def bind_upstream(step: RunJob, folder: str, ledger: Ledger, ended: Mapping[str, Status]) -> RunJob | Ending:
    """Return a job with the files to read, or how it ends because there are none, or because it must wait.

    `folder` is the manifest's; `ended` says how jobs of this run ended. Raises OrtdeployError if a file is not what was
    committed.
    """
    upstream = step.input.upstream
    if upstream is None:
        return step
    place = Path(folder) / upstream.output
    record = ledger.output(ledger.key(place))
    why_waiting = _why_waiting(upstream, record, ended)
    if why_waiting is not None:
        return Ending(status=Status.NOTHING_TO_DO, reason=why_waiting)
    own, known = _own(step, folder, ledger)
    left = unread(
        deliveries(record, shown(str(place.absolute()), folder)), known, record.forgotten.parts if record else 0
    )
    if left.restarted:
        raise OrtdeployError(f'job "{upstream.job}" has started over since the plan was made; apply again')
    superseded = 0 if own is None or left.files else len(_superseded(step, folder, ledger, through=False))
    is_through = own is None or own.status == Status.DONE  # else a run was ended while rows left
    is_through = is_through and step.output.replaces is None  # else old rows make room, even for none
    if not left.files and not superseded and is_through:
        return Ending(
            status=Status.NOTHING_TO_DO, reason=f'it has read every row that job "{upstream.job}" has committed'
        )
    digests = DigestCache(ledger.state_dir)
    for one in left.files:
        _check(one, step, full_path(folder, one.state.path), digests)
    step = replace(step, input=replace(step.input, upstream=replace(upstream, superseded=superseded)))
    return _with_files(step, folder, left.files, own.first_row if own is not None else 0)


def withdraw_superseded(context: JobContext) -> None:
    """Remove rows that were made of rows that the other job has run again or withdrawn, once all its rows are read."""
    rows = _superseded(context.step, context.plan.folder, context.output.ledger, through=True)
    record = context.output.record()
    if record is not None and rows:
        log.info("row.superseded", rows=len(rows), output=context.step.output.shown)
        take_out(context, record, as_spans(rows))


def _superseded(step: RunJob, folder: str, ledger: Ledger, *, through: bool) -> tuple[int, ...]:
    """Return the job's own rows that were made of rows that no longer count. Raises OrtdeployError."""
    upstream = step.input.upstream
    if upstream is None:
        return ()
    place = Path(folder) / upstream.output

    def row_numbers(name: str) -> Sequence[int]:
        return SINKS[step.input.format].row_numbers(place / name)

    keys = (ledger.key(Path(folder) / step.output.path), ledger.key(place))
    return superseded_rows(ledger, *keys, shown(str(place.absolute()), folder), row_numbers, through=through)


def _why_waiting(upstream: UpstreamJob, record: OutputRecord | None, ended: Mapping[str, Status]) -> str | None:
    """Return why a job must not read another job's committed rows yet; None if it may."""
    if record is None:
        return f'job "{upstream.job}", whose rows it reads, has committed none'
    status = ended.get(upstream.job, record.status)
    if status in _ENDED_WELL:
        return None
    how = "has not come to its end" if status == "running" else f"ended as {status}"
    return (
        f'it waits: job "{upstream.job}", whose rows it reads, {how}. What that has committed is read when it ends well'
    )


def _own(step: RunJob, folder: str, ledger: Ledger) -> tuple[OutputRecord | None, Sequence[KnownFile]]:
    """Return what the ledger knows of the job's own output, and which files it has read; nothing if it starts over."""
    place = Path(folder) / step.output.path
    record = standing_output(step, place, ledger)
    return record, () if record is None else ledger.inputs(record.output)


def _check(one: PublishedFile, step: RunJob, path: str, digests: DigestCache) -> None:
    how = difference(Path(path), [one.file], digests.digest)
    if how == GONE_FILE:
        raise OrtdeployError(
            f'{one.state.path} was carried away before job "{step.job}" had read it. Restore it; status says which '
            "parts every reader has"
        )
    if how is not None:
        raise OrtdeployError(f"{one.state.path} was committed and {how}. Restore it from a copy")


def _with_files(step: RunJob, folder: str, files: tuple[PublishedFile, ...], first_row: int) -> RunJob:
    states = tuple(one.state for one in files)
    kind = step.input.format
    upstream = step.input.upstream
    if upstream is None:
        raise AssertionError("only a job that reads another one's rows gets files here")
    names = {old: new for new, old in upstream.names.items()}
    carried = tuple(upstream.names.get(name, name) for name in step.input.key)
    facts = InputFacts(format=kind, memory_limit=step.limits.memory, carried=carried)
    paths = [full_path(folder, state.path) for state in states]
    seen = look_at(kind, paths, facts) if paths else InputFacts(rows=0)
    if seen.problem is not None:
        raise OrtdeployError(seen.problem.detail.rstrip("."))
    rows = None if seen.rows is None else first_row + seen.rows
    upstream = replace(upstream, digests=tuple(one.file.sha256 for one in files))
    types = {names.get(name, name): kind for name, kind in seen.types.items()}
    source = replace(step.input, files=states, first_row=first_row, rows=rows, upstream=upstream, types=types)
    settled = settled_types(step.output.format, step.input.key, types, step.output.types)
    return replace(step, input=source, output=replace(step.output, settled=settled))
