"""`ortdeploy status`: show what the ledger has about a manifest's jobs; only reads, also during a run."""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ortdeploy.cli.command_line.manifest_options import load_options
from ortdeploy.cli.commands.shared import log_outcome, terminal_width, use_color, write_findings
from ortdeploy.cli.exit_codes import EXIT_OK, EXIT_REJECTED
from ortdeploy.cli.output.streams import overheard
from ortdeploy.diagnostics import Diagnostic, OrtdeployError, UsageError, has_errors
from ortdeploy.facts.data import FileState, KnownFile
from ortdeploy.files.digest_cache import DigestCache
from ortdeploy.files.gate import decides
from ortdeploy.files.names import is_there
from ortdeploy.files.urls import is_url, path_from_here
from ortdeploy.ledger.archived_outputs import put_aside_before
from ortdeploy.ledger.integrity import damages
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.live_progress import read_live
from ortdeploy.ledger.open_plans import FOLDER as PARTS
from ortdeploy.ledger.opening import read_ledger
from ortdeploy.ledger.output_lock import is_live
from ortdeploy.ledger.part_ages import ages_of
from ortdeploy.ledger.published_files import Reader, deliveries, reader_of
from ortdeploy.ledger.records import OutputRecord, output_key
from ortdeploy.manifest.job_order import readers_of
from ortdeploy.manifest.loader import find_manifests
from ortdeploy.manifest.named_paths import path_from_manifest
from ortdeploy.manifest.spec import JobSpec, Spec
from ortdeploy.planning.devices.variants import as_last_chosen
from ortdeploy.planning.job_names import select_jobs
from ortdeploy.planning.pending_reruns import local_files, may_run_again, rows_of_changed_files
from ortdeploy.planning.refused_applies import Refusal, refused_applies
from ortdeploy.planning.remembered.dependencies import escaped_outputs, text_rests_on
from ortdeploy.planning.remembered.nothing_to_do import AnswerMemo
from ortdeploy.planning.state_folder import state_folder
from ortdeploy.planning.validation import validate
from ortdeploy.planning.workflow import unworkable
from ortdeploy.sources.files import UnmountedFolders, full_path, shown
from ortdeploy.views import json
from ortdeploy.views.status import render_status
from ortdeploy.views.status_model import DeliveredFile, JobStatus

if TYPE_CHECKING:
    from ortdeploy.files.shared_place import SharedPlace
    from ortdeploy.results.shares import Shares


def run(arguments: argparse.Namespace) -> int:
    """Print each job with its state; if no job runs, remember the output for the next call.

    A manifest that is refused does not hide the others.
    """
    recollection = AnswerMemo(arguments)
    with overheard() as said:
        specs, jobs, code = _show(arguments)
    if code == EXIT_OK and specs and all(map(_stays, jobs)):
        state_dir = state_folder(specs[0].folder, arguments.state_dir, specs[0].roots)
        rests_on = text_rests_on(specs, arguments.paths, state_dir)
        files = sorted({*rests_on["files"], *(file for job in jobs for file in job.looked_at)})
        patterns = [*rests_on["patterns"], *escaped_outputs(specs)]
        recollection.keep({**rests_on, "files": files, "patterns": patterns}, str(state_dir), said.text())
    return code


_SOME = 2
"""Parts that an output must have before the first one can be forgotten."""

_MOVING = frozenset({"running", "stopped"})
"""States that depend on the process that locks an output, so they can change without a change of the ledger."""


_GOOD = frozenset({"done", "paused", "running"})


def _stays(job: JobStatus) -> bool:
    """Return whether the output changes only with the ledger.

    Files that may be carried away could go at any time, and a store may have got parts of shards.
    """
    moves = job.record is not None and (job.record.status in _MOVING or (job.removable and job.delivered))
    return job.shares is None and not job.asked and job.keep is None and not moves


def _show(arguments: argparse.Namespace) -> tuple[tuple[Spec, ...], list[JobStatus], int]:
    taken = getattr(arguments, "taken", None)
    if arguments.versions and taken is None:
        raise UsageError("--versions is of what is installed: name it as @NAME")
    installed = None if taken is None or not arguments.versions else taken.installed
    choose = as_last_chosen(arguments.state_dir)
    validated = validate(arguments.paths, load_options(arguments), choose=choose)
    rejected = has_errors(validated.diagnostics)
    refused = _refusals(arguments)
    validated = replace(validated, specs=_with_stand_ins(validated.specs, refused))
    if rejected:
        write_findings(validated.diagnostics, arguments, sys.stderr)
    if rejected and not validated.specs:
        return (), [], EXIT_REJECTED
    names = [job.name for spec in validated.specs for job in spec.jobs]
    wanted = select_jobs(arguments.jobs, arguments.excluded, names)
    records, unreadable = _all_records(validated.specs, arguments.state_dir)
    records = [one for one in records if one.job in wanted]
    write_findings(unreadable, arguments, sys.stderr)
    rejected = rejected or bool(unreadable)
    profiles = {spec.path: spec.choice for spec in validated.specs if spec.choice is not None and spec.choice.since}
    if arguments.format == "json":
        sys.stdout.write(json.render_status(records, refused, profiles, installed))
    else:
        if installed is not None:
            from ortdeploy.planning.versions.installed import sizes_of  # noqa: PLC0415  only if asked for
            from ortdeploy.views.bundles import render_versions  # noqa: PLC0415

            state_dir = state_folder(validated.specs[0].folder, arguments.state_dir, [])
            sys.stdout.write(render_versions(installed, sizes_of(installed, state_dir)))
        profiles = {} if arguments.quiet else profiles
        here = [replace(one, output=path_from_here(one.folder, one.output)) for one in records]
        said = [one for one in here if not arguments.quiet or _is_bad(one)]
        if said or refused or not arguments.quiet:
            color, width = use_color(arguments), terminal_width(sys.stdout)
            told = render_status(said, refused, profiles, verbose=arguments.verbose, color=color, width=width)
            sys.stdout.write(told)
    log_outcome(arguments, "status.shown", jobs=len(records))
    return validated.specs, records, EXIT_REJECTED if rejected else EXIT_OK


def _all_records(specs: Sequence[Spec], state_dir: str | None) -> tuple[list[JobStatus], tuple[Diagnostic, ...]]:
    """Return what the ledgers have about the jobs of manifests, and why some of these ledgers could not be read."""
    records: list[JobStatus] = []
    unreadable: list[Diagnostic] = []
    for spec in specs:
        try:
            records += _records(spec, state_dir)
        except OrtdeployError as error:
            unreadable.append(unworkable(spec, error))
    return records, tuple(unreadable)


def _is_bad(one: JobStatus) -> bool:
    """Return whether a job has failed rows or damaged parts, or its last run did not come to a good end."""
    return one.record is not None and (bool(one.failed or one.damaged) or one.record.status not in _GOOD)


def _refusals(arguments: argparse.Namespace) -> list[Refusal]:
    """Return what was refused when it was last applied; a last good version may run in the place of a manifest."""
    installed = getattr(getattr(arguments, "taken", None), "installed", None)
    if installed is not None and (bundle := installed.wanted_refusal) is not None:
        what, why = f"{installed.name} {bundle.called}", f"not {bundle.state}: {bundle.reason}"
        current = installed.version(installed.current)
        runs = None if current is None else current.number
        return [Refusal(manifest=what, since=bundle.since, reason=why, runs=runs)]
    found = {one.manifest: one for one in refused_applies(find_manifests(arguments.paths)[0], arguments.state_dir)}
    if found:
        from ortdeploy.planning.versions.last_good import find_refusals  # noqa: PLC0415  only where something is refused

        stand_ins = find_refusals(arguments.paths, load_options(arguments), arguments.state_dir)
        found |= {one.manifest: one for one in stand_ins}
    return list(found.values())


def _with_stand_ins(specs: tuple[Spec, ...], refusals: Sequence[Refusal]) -> tuple[Spec, ...]:
    """Return the specs, with the last good versions that run in the place of refused manifests."""
    refused = {one.manifest for one in refusals if one.good is not None}
    return (*(spec for spec in specs if spec.path not in refused), *(spec for one in refusals for spec in one.specs))


def _records(spec: Spec, state_dir: str | None) -> list[JobStatus]:
    folder = state_folder(spec.folder, state_dir, spec.roots)
    known, delivered, inputs = _read_with_stopped(spec, folder)
    found = []
    for job in spec.jobs:
        record = known.get(job.name)
        running_now = record is not None and record.status == "running"
        live = _live(folder, record) if record is not None and running_now else None
        own = inputs.get(job.name, ()) if not running_now else ()
        files = own if may_run_again(job) else ()
        place = _shared_place(spec, job)
        shares, unread = (None, None) if place is None else _shares(place)
        asked = place is not None and job.output.url is not None
        status = JobStatus(
            deployment=spec.name,
            job=job.name,
            output=job.output.shown,
            record=record,
            folder=spec.folder,
            live=live,
            removable=job.output.removable,
            delivered=delivered.get(job.name, ()),
            shares=shares,
            unread=unread,
            asked=asked,
            changed_rows=rows_of_changed_files(spec.folder, files, partial(_contents, record, folder)),
            looked_at=(*local_files(spec.folder, files), *_files_of_parts(spec, job, record)),
            damaged={} if record is None or running_now else _damaged(spec, job, record, folder),
            keep=job.output.keep,
            held_up_by=None if record is None else _held_up_by(spec, job, record, own),
        )
        found.append(status)
    return found


def _contents(record: OutputRecord | None, state_dir: Path) -> Mapping[FileState, bytes]:
    """Return what the input files of an output held when their rows were run. Raises OrtdeployError."""
    with read_ledger(state_dir) as ledger:
        return {} if ledger is None or record is None else ledger.contents(record.output)


def _damaged(spec: Spec, job: JobSpec, record: OutputRecord, state_dir: Path) -> Mapping[str, str]:
    """Return the committed files that are not as they were written; a file of a store may have no copy here."""
    output, may_be_gone = path_from_manifest(spec, job.output.path), job.output.removable or job.output.url is not None
    digest = DigestCache(state_dir).digest
    return dict(damages(output, record.parts, digest, rewrites=record.rewrites, removable=may_be_gone))


def _files_of_parts(spec: Spec, job: JobSpec, record: OutputRecord | None) -> Iterator[str]:
    """Yield the committed files of an output: what `status` says of it rests on them."""
    output = path_from_manifest(spec, job.output.path)
    yield from (str(output / str(file.file)) for part in (record.parts if record else ()) for file in part.files)


def _held_up_by(spec: Spec, job: JobSpec, record: OutputRecord, inputs: Sequence[KnownFile]) -> str | None:
    """Return the input file that keeps the first part from being forgotten, if the part is away and old enough."""
    if job.output.keep is None or len(record.parts) < _SOME:
        return None
    first, place = record.parts[0], path_from_manifest(spec, job.output.path)
    is_old = ages_of(record.parts, time.time())[0] > job.output.keep
    if not is_old or any(is_there(place / str(file.file)) for file in first.files):
        return None
    of_part = [one.state.path for one in inputs if one.span and one.span[0] < first.end and first.start < sum(one.span)]
    unmounted = UnmountedFolders(spec.folder, job.input.paths)

    def holds_up(path: str) -> bool:
        return is_there(Path(full_path(spec.folder, path))) or (bool(job.input.paths) and unmounted.may_hold(path))

    return next((path for path in of_part if not is_url(path) and holds_up(path)), None)


def _live(state: Path, record: OutputRecord) -> Mapping[str, Any] | None:
    """Return how far a running job is; its progress file may be a second behind the parts that it has committed."""
    live = read_live(state, record.output)
    if live is None:
        return None
    return {**live, "done": max(live["done"], record.rows), "failed": max(live["failed"], record.failed)}


def _shared_place(spec: Spec, job: JobSpec) -> "SharedPlace | None":
    """Return where workers may share the output; a store is not asked if one machine keeps a copy of the output."""
    output = path_from_manifest(spec, job.output.path)
    is_shared = (output / PARTS).is_dir()
    url = None if is_shared else job.output.url
    if not is_shared and (url is None or is_there(output) or not decides(url)):
        return None
    from ortdeploy.parts.shared_place import place_of  # noqa: PLC0415  only where somebody has run shards

    return place_of(url, output, (spec.folder, *spec.roots))


def _shares(place: "SharedPlace") -> "tuple[Shares | None, str | None]":
    """Return how far the workers are that share an output, without the ledger, which they only read; or why not."""
    from ortdeploy.parts.worker_progress import open_shares  # noqa: PLC0415  only where somebody has run shards

    try:
        return open_shares(place), None
    except OrtdeployError as error:
        return None, str(error)


_Inputs = Mapping[str, Sequence[KnownFile]]
_Read = tuple[dict[str, OutputRecord], dict[str, tuple[DeliveredFile, ...]], _Inputs]


def _read_with_stopped(spec: Spec, folder: Path) -> _Read:
    """Return what `_read` does; runs that nobody holds, and that have not ended, are `stopped`."""
    stopped: frozenset[tuple[str, str]] = frozenset()
    while True:
        known, delivered, inputs = _read(spec, folder)
        running = {(one.output, one.run) for one in known.values() if one.status == "running"}
        gone = frozenset(one for one in running if not is_live(folder, one[0]))
        if gone == stopped:
            break
        stopped = gone  # what nobody holds may have ended since it was read
    for name, record in known.items():
        if (record.output, record.run) in stopped:
            known[name] = replace(record, status="stopped")
    return known, delivered, inputs


def _read(spec: Spec, folder: Path) -> _Read:
    """Return the records of the jobs at one moment, the files of each job that other jobs read, and its inputs.

    Inputs are those of jobs whose changed files run again, or whose parts are forgotten.
    """
    with read_ledger(folder) as ledger:
        if ledger is None:
            return {}, {}, {}
        with ledger.at_one_moment():
            outputs = {job.name: output_key(Path(spec.folder) / job.output.path, folder) for job in spec.jobs}
            found = {job.name: _record(ledger, spec, job, outputs[job.name]) for job in spec.jobs}
            known = {name: one for name, one in found.items() if one and (one.deployment, one.job) == (spec.name, name)}
            delivered = {
                job.name: _delivered(spec, job, known[job.name], readers)
                for job in spec.jobs
                if (names := readers_of(job.name, spec.jobs)) and job.name in known
                if (readers := [reader_of(ledger, outputs[name], name) for name in names])
            }
            wanted = (job for job in spec.jobs if may_run_again(job) or job.output.keep is not None)
            again = [job.name for job in wanted if job.name in known]
            inputs = {name: ledger.inputs(outputs[name]) for name in again}
    return known, delivered, inputs


def _record(ledger: Ledger, spec: Spec, job: JobSpec, output: str) -> OutputRecord | None:
    """Return what the ledger has about an output; None if a killed run has put it aside before the ledger knew."""
    known = ledger.output(output)
    put_aside = known is not None and put_aside_before(ledger, path_from_manifest(spec, job.output.path), known)
    return None if put_aside else known


def _delivered(spec: Spec, job: JobSpec, record: OutputRecord, readers: Sequence[Reader]) -> tuple[DeliveredFile, ...]:
    """Return the files of a job and the readers that still need each, without files that are gone and not needed."""
    place = path_from_manifest(spec, job.output.path)
    found = (
        DeliveredFile(file=str(one.file.file), needed_by=tuple(reader.job for reader in readers if reader.needs(one)))
        for one in deliveries(record, shown(str(place), spec.folder))
    )
    return tuple(one for one in found if one.needed_by or is_there(place / one.file))
