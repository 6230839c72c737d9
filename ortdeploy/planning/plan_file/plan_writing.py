"""Writes plan files: the plans of manifests as JSON, without secrets.

These are left out of the file, because a run changes them or another machine forecasts them differently: how much of a
job is done, its run, memory forecasts, predicted placement, thread layouts to measure or to try, and the place of a
plugin's library. So is what follows from the models again: whether a batch may trap.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import FileState, HashedFile
from ortdeploy.facts.variants import Choice
from ortdeploy.files.digests import file_digest
from ortdeploy.files.names import relative
from ortdeploy.files.urls import is_url
from ortdeploy.plan.masked import masked_step
from ortdeploy.plan.pipeline import PlannedPlace, PlannedPreset, PlannedWireStep
from ortdeploy.plan.plan_file import STEP_NAMES, said_fields, without_folder
from ortdeploy.plan.steps import (
    FORMAT_VERSION,
    FinishedJob,
    JobInput,
    JobLimits,
    JobOutput,
    LoadAdapter,
    OpenSession,
    Plan,
    PlannedCheck,
    PlannedDevice,
    PlannedProvider,
    PlannedSession,
    RowCheck,
    RunJob,
    UpstreamJob,
)
from ortdeploy.planning.plan_file.saved_plan import BOUND, INPUTS, MAX_BYTES
from ortdeploy.planning.plan_file.saved_tables import LONG, pack_lines, within_or_beside, write_table
from ortdeploy.redaction import secret_setting
from ortdeploy.sources.files import full_path, state_in_stat

MAX_HASHED = 1024 * 1024 * 1024
"""Bytes of input files, in the order in which they are read, whose digests a plan file has. For the others it has size
and time, so that a plan for terabytes is saved at once."""

LEFT_OUT: Mapping[type, frozenset[str]] = {
    RunJob: frozenset({"retry", "letters", "thread_layout"}),
    UpstreamJob: frozenset({"digests", "superseded"}),
    JobInput: frozenset(
        {"files", "first_row", "rows", "rerun", "rerun_rows", "unreadable", "rows_before", "elsewhere", "types"}
    ),
    JobOutput: frozenset({"committed_rows", "replaces", "aside", "upgraded_at", "changed", "settled"}),
    JobLimits: frozenset({"forecast"}),
    OpenSession: frozenset({"thread_layouts"}),
    PlannedSession: frozenset({"predicted"}),
    PlannedDevice: frozenset({"library"}),
    PlannedCheck: frozenset({"record", "leak_runs", "synthetic_inputs"}),
    FinishedJob: frozenset({"rows", "committed", "failed", "skipped", "new_run", "left_over", "unwritten", "unmade"}),
    RowCheck: frozenset({"may_trap"}),
}
"""The fields of a plan that are left out of the file, by class."""

_PATHS: Mapping[type, frozenset[str]] = {
    OpenSession: frozenset({"path"}),
    LoadAdapter: frozenset({"path"}),
    PlannedPreset: frozenset({"folder", "image_folder", "latents"}),
    PlannedPlace: frozenset({"path"}),
    HashedFile: frozenset({"path"}),
    PlannedCheck: frozenset({"root"}),
}

_OPTIONS: Mapping[type, frozenset[str]] = {
    OpenSession: frozenset({"options", "run_options"}),
    PlannedProvider: frozenset({"options"}),
    PlannedWireStep: frozenset({"options"}),
}


class PlanToSave(Struct, frozen=True, kw_only=True):
    """A plan for a plan file. `rows` are what `saved_rows` makes of the indexes of text files; open plans have none."""

    plan: Plan
    rows: Mapping[str, bytes] = field(default_factory=dict)


def dump_plans(plans: Sequence[PlanToSave], root: Path, ortdeploy_version: str, file: Path, kind: str = BOUND) -> str:
    """Return the text of a plan file whose paths are relative to `root`; tables of long lists are written beside it.

    Raises OSError, OrtdeployError.
    """
    document = {
        "format_version": FORMAT_VERSION,
        "kind": kind,
        "made_by": f"ortdeploy {ortdeploy_version}",
        "plans": [_dump_plan(one, root, file) for one in plans],
    }
    text = json.dumps(document, indent=1) + "\n"
    if len(text) > MAX_BYTES:  # JSON is ASCII here
        raise OrtdeployError(
            f"the plan file would have {len(text):,} bytes, and apply reads {MAX_BYTES:,} at most. Save a plan for "
            "each manifest, or for some of the jobs, with --job"
        )
    return text


def _dump_plan(saved: PlanToSave, root: Path, file: Path) -> dict[str, Any]:
    plan = saved.plan
    secret = secret_setting(plan.sets)
    if secret is not None:
        raise OrtdeployError(
            f"--set {secret} holds a secret, and a plan file has none. Write it into a file for "
            "--overlay, which a plan file names by its path"
        )
    replaced = {
        step.job: step.output.replaces for step in plan.steps if isinstance(step, RunJob) and step.output.replaces
    }
    return {
        "manifest": relative(os.path.join(plan.folder, Path(plan.manifest).name), root),  # noqa: PTH118  as text
        "options": {
            "profile": plan.profile,
            **({} if plan.choice is None else {"choice": _dump_choice(plan.choice)}),
            "sets": list(plan.sets),
            "overlays": [relative(path, root) for path in plan.overlays],
            "roots": [relative(path, root) for path in plan.roots],
            "jobs": None if plan.jobs is None else list(plan.jobs),
            "starts_over": replaced,
        },
        "facts": [_saved(fact, plan.folder) for fact in plan.facts if fact.kind != INPUTS],
        INPUTS: {one.job: _dump_files(one.files, plan.folder, file) for one in plan.inputs},
        "rows": {
            one.job: within_or_beside(file, "rows", saved.rows[one.job], len(one.files))
            for one in plan.inputs
            if one.job in saved.rows
        },
        **made(plan),
    }


def _dump_choice(choice: Choice) -> dict[str, Any]:
    return {"reason": choice.reason, "facts": dict(sorted(choice.facts.items()))}


def made(plan: Plan) -> dict[str, Any]:
    """Return what a plan would run, in the form of a plan file's JSON, without secrets."""
    parts = {
        "deployment": plan.deployment,
        "gates": [_saved(gate, plan.folder) for gate in plan.gates],
        "steps": [_saved(masked_step(step), plan.folder) for step in plan.steps],
        "finished": [_saved(done, plan.folder) for done in plan.finished],
    }
    kept: dict[str, Any] = json.loads(json.dumps(parts))
    return kept


def _saved(value: Any, folder: str) -> Any:
    """Return a value of a plan as its file has it, with paths from the manifest's folder."""
    if isinstance(value, Struct):
        kind: type = type(value)
        left_out = LEFT_OUT.get(kind, ())
        step = {"step": STEP_NAMES[kind]} if kind in STEP_NAMES else {}
        return step | {
            name: _saved_field(kind, name, item, folder)
            for name, item in said_fields(value).items()
            if name not in left_out
        }
    if isinstance(value, Mapping):
        return {str(key): _saved(item, folder) for key, item in value.items()}
    if isinstance(value, tuple | list | frozenset):
        return [_saved(item, folder) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such number
    return value


def _saved_field(kind: type, name: str, value: Any, folder: str) -> Any:
    if name in _PATHS.get(kind, ()) and value:
        return relative(value, folder)
    if name in _OPTIONS.get(kind, ()):
        return {key: _saved_option(option, folder) for key, option in value.items()}
    return _saved(value, folder)


def _saved_option(value: Any, folder: str) -> Any:
    """Return the value of a session, run, provider or operation option. Every option of a plan file passes here."""
    if isinstance(value, Mapping):
        return {key: _saved_option(item, folder) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_saved_option(item, folder) for item in value]
    return without_folder(value, folder) if isinstance(value, str) else _saved(value, folder)


def _dump_files(states: Sequence[FileState], folder: str, file: Path) -> Any:
    """Return the input files of a job; of many, what the plan says of the table that has them. Raises OSError."""
    found = _with_digests(states, folder)
    return list(found) if len(states) <= LONG else write_table(file, "files", pack_lines(found), len(states))


def _with_digests(states: Sequence[FileState], folder: str) -> Iterator[list[Any]]:
    """Yield files with size, time and digest; without a digest beyond the bytes that may be read."""
    room = MAX_HASHED
    for state in states:
        room -= state.size
        digest = None if room < 0 or is_url(state.path) else digest_of(state, folder)
        yield [state.path, state.size, state.mtime_ns, digest]


def digest_of(state: FileState, folder: str) -> str:
    """Return the digest of an input file that is still what was planned. Raises OrtdeployError."""
    path = Path(full_path(folder, state.path))
    try:
        digest, stat = file_digest(path), path.stat()
    except OSError as error:
        raise OrtdeployError(f"input file {state.path} cannot be read: {error.strerror}") from error
    if state_in_stat(stat) != (state.size, state.mtime_ns):
        raise OrtdeployError(f"input file {state.path} changed while the plan was made; plan again")
    return digest
