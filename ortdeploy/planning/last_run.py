"""Compares the origin of a job's committed rows with the origin that they would have now.

The ledger has the origin of each part: digests, sessions and versions, and one digest for each kind of setting in the
manifest. Beside it is the text of the manifest with which each output was last run.
"""

import json
import platform
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.deployment.resolved import Deployment, ResolvedJob
from ortdeploy.ledger.opening import read_ledger
from ortdeploy.ledger.records import OutputRecord, output_key
from ortdeploy.planning.differences import NOTHING, Difference, Value, find_differences
from ortdeploy.planning.last_manifest import kept_text
from ortdeploy.providers.secrets import masked_document
from ortdeploy.versions import versions

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

_COMPARED = ("manifest", "model", "components", "adapters", "sessions", "device", "versions")
"""The keys of a part's origin that are known before a run."""


class Changes(Struct, frozen=True, kw_only=True):
    """How a job differs from its last run; `run` is None if it has not run, and `left_by` who has made its output."""

    job: str
    run: str | None
    left_by: str | None = None
    differences: tuple[Difference, ...] = ()


def changes_since_last_run(
    deployment: Deployment, state_dir: Path, jobs: Collection[str] | None
) -> tuple[Changes, ...]:
    """Return how each of some `jobs` (None: all) differs from its last run. Raises OrtdeployError."""
    wanted = [job for job in deployment.jobs if jobs is None or job.spec.name in jobs]
    return tuple(_changes(deployment, job, state_dir) for job in wanted)


def stale_jobs(deployment: Deployment) -> frozenset[str]:
    """Return the jobs whose committed rows have another origin than they would have now."""
    return frozenset(
        job.spec.name
        for job in deployment.jobs
        if job.output.state in {"part", "finished"} and not job.output.problem and job.readable and not job.is_current
    )


def _changes(deployment: Deployment, job: ResolvedJob, state_dir: Path) -> Changes:
    output = output_key(Path(deployment.spec.folder) / job.spec.output.path, state_dir)
    with read_ledger(state_dir) as ledger:
        record = ledger.output(output) if ledger else None
        if ledger is None or record is None:
            return Changes(job=job.spec.name, run=None)
        if (record.deployment, record.job) != (deployment.spec.name, job.spec.name):
            return Changes(job=job.spec.name, run=None, left_by=f"job {record.job} of {record.deployment}")
        origins = ledger.provenance(record.origins)
        known = {one.state.path: one.state for one in ledger.inputs(output)}
    then = _then(record, origins)
    now = _now(deployment, job, then)
    found = [*_of_the_text(deployment.spec, kept_text(state_dir, output, record.run))]
    found += find_differences(Value.plain(then), Value.plain(now))
    sizes = {state.path: state for state in job.input.present}
    found += [
        Difference(path=f"input[{name}]", old=_state(known.get(name)), new=_state(sizes.get(name)))
        for name in job.input.changed
    ]
    return Changes(job=job.spec.name, run=record.run, differences=tuple(found))


def _of_the_text(spec: "Spec", then: Any) -> Iterator[Difference]:
    """Yield what differs between the manifest's text and that of a run; nothing if that is not kept."""
    if then is not None:
        now = json.loads(json.dumps(masked_document(spec.document.data)))
        for one in find_differences(Value.plain(then), Value.plain(now)):
            yield replace(one, path=f"manifest.{one.path}")


def _then(record: OutputRecord, origins: Mapping[str, Any]) -> dict[str, Any]:
    """Return the origin of the last rows; for ledgers without origins, only the identity."""
    last = record.begun.part if record.begun is not None else next(reversed(record.parts), None)
    origin = origins.get(last.provenance, {}) if last is not None and last.provenance else {}
    sessions = {name: {"providers": one["providers"]} for name, one in origin.get("sessions", {}).items()}
    kept = {key: origin[key] for key in _COMPARED if key in origin}
    return {**kept, **({"sessions": sessions} if sessions else {}), "settings": _settings(record.identity, kept)}


def _settings(identity: Mapping[str, str], others: Mapping[str, Any]) -> dict[str, str]:
    """Return the digests of the identity, without those that are among `others`."""
    return {name: digest for name, digest in identity.items() if name not in others}


def _now(deployment: Deployment, job: ResolvedJob, then: Mapping[str, Any]) -> dict[str, Any]:
    """Return the origin of now, with the keys that are known of `then`."""
    sessions = {one.spec.name: {"providers": [provider.name for provider in one.chain]} for one in job.model.usable}
    before = then.get("sessions", {})
    now: dict[str, Any] = {
        "manifest": deployment.spec.sha256,
        "model": {"name": job.model.spec.name, "sha256": job.model.facts.sha256},
        "components": {one.spec.name: one.facts.sha256 for one in job.models},
        "adapters": {one.name: job.adapter_facts[one.name].sha256 for one in job.adapters},
        "sessions": before if job.pipeline else {name: one for name, one in sessions.items() if name in before},
        "device": {"host": platform.node(), "architecture": platform.machine()},
        "versions": versions(),
    }
    identity = job.identity if job.readable else {}
    return {**{key: now[key] for key in _COMPARED if key in then}, "settings": _settings(identity, then)}


def _state(state: Any) -> Any:
    return NOTHING if state is None else {"size": state.size, "mtime_ns": state.mtime_ns}
