"""Finds the files that a job has committed, and that a job that reads its rows has not read yet."""

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import InputFacts, KnownFile
from ortdeploy.facts.problems import CARRIED_AWAY, Problem
from ortdeploy.files.names import is_file
from ortdeploy.ledger.opening import read_ledger
from ortdeploy.ledger.published_files import deliveries, unread
from ortdeploy.ledger.records import OutputRecord, output_key
from ortdeploy.ledger.stale_rows import superseded_rows
from ortdeploy.manifest.named_paths import path_from_manifest
from ortdeploy.manifest.spec import JobSpec, Spec
from ortdeploy.sinks.catalogue import SINKS
from ortdeploy.sources.catalogue import SOURCES, look_at
from ortdeploy.sources.files import full_path, shown

GONE_UNREAD = '{} was carried away before job "{}" had read it. Restore it; status says which parts every reader has'


def probe_upstream(
    spec: Spec,
    job: JobSpec,
    upstream: JobSpec,
    record: OutputRecord | None,
    known: Sequence[KnownFile],
    state_dir: Path,
) -> InputFacts:
    """Find the files that `upstream` has committed, as its `record` says, and that are not among the `known` ones.

    If there is none, count the rows of `job` that were made of rows that no longer count.
    """
    place = path_from_manifest(spec, upstream.output.path)
    left = unread(deliveries(record, shown(str(place), spec.folder)), known, record.forgotten.parts if record else 0)
    facts = InputFacts(
        states=tuple(one.state for one in left.files),
        files=tuple(full_path(spec.folder, one.state.path) for one in left.files),
        restarted=left.restarted,
        carried=job.input.key,
    )
    if known and not left.files and not left.restarted:
        return _with_superseded(spec, job, upstream, facts, state_dir)
    if not left.files or left.restarted or upstream.output.format not in SOURCES:
        return facts
    gone = next((path for path in facts.files if not is_file(Path(path))), None)
    if gone is not None:
        problem = Problem(kind=CARRIED_AWAY, detail=f"{GONE_UNREAD.format(shown(gone, spec.folder), job.name)}.")
        return replace(facts, problem=problem)
    limit = job.limits.memory
    return look_at(
        upstream.output.format, facts.files, replace(facts, format=upstream.output.format, memory_limit=limit)
    )


def _with_superseded(spec: Spec, job: JobSpec, upstream: JobSpec, facts: InputFacts, state_dir: Path) -> InputFacts:
    place = path_from_manifest(spec, upstream.output.path)
    own = path_from_manifest(spec, job.output.path)

    def row_numbers(name: str) -> Sequence[int]:
        return SINKS[upstream.output.format].row_numbers(place / name)

    with read_ledger(state_dir) as ledger:
        if ledger is None:
            return facts
        keys = (output_key(own, state_dir), output_key(place, state_dir))
        try:
            rows = superseded_rows(ledger, *keys, shown(str(place), spec.folder), row_numbers, through=False)
        except OrtdeployError as error:
            return replace(facts, problem=Problem(kind=CARRIED_AWAY, detail=f"{error}."))
    return replace(facts, superseded=len(rows))
