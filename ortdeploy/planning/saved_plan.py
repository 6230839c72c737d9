"""The plan file: `plan --out` saves it, and `apply` compares it with the plan that it makes itself.

A plan file may come from anyone, so nothing in it is carried out. It says which manifest was planned with which
options, the facts that the plan rested on, and its steps. `apply` plans again, compares, and runs its own plan. So the
file needs no secrets of options and URLs, and has none: it is kept in CI and copied to workers.

Paths: a manifest, its overlays and roots are relative to the plan file's folder or to --root; everything inside a plan
is relative to its manifest. Long lists of input files lie beside the plan file: see `saved_tables`.

These are left out of the file, because a run changes them or another machine forecasts them differently: how much of a
job is done, its run, memory forecasts, predicted placement, thread layouts to measure or to try, and the place of a
plugin's library.
"""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, fields, is_dataclass
from pathlib import Path
from typing import Any

from ortdeploy.deployment.resolved import Deployment
from ortdeploy.diagnostics import Certainty, Diagnostic, OrtdeployError, Severity, Span
from ortdeploy.facts.data import FileState, HashedFile
from ortdeploy.facts.host import DeviceFacts, HostFacts, RuntimeFacts
from ortdeploy.files.digests import file_digest
from ortdeploy.files.gate import outside
from ortdeploy.files.names import relative
from ortdeploy.files.urls import is_url
from ortdeploy.manifest.document import Document, stage_diagnostic
from ortdeploy.manifest.pages import SUMMARIES
from ortdeploy.manifest.schema_check import check_document
from ortdeploy.plan.masked import masked_step
from ortdeploy.plan.pipeline import PlannedPlace, PlannedPreset, PlannedWireStep
from ortdeploy.plan.plan_file import STEP_NAMES, without_folder
from ortdeploy.plan.steps import (
    FORMAT_VERSION,
    Fact,
    FinishedJob,
    JobInput,
    JobLimits,
    JobOutput,
    LoadAdapter,
    OpenSession,
    Plan,
    PlannedCheck,
    PlannedDevice,
    PlannedFiles,
    PlannedProvider,
    PlannedSession,
    RunJob,
    UpstreamJob,
)
from ortdeploy.planning.make.facts import OF_MACHINE, PROVIDERS, VERSION, plan_facts
from ortdeploy.planning.make.plan import plan_inputs
from ortdeploy.planning.saved_tables import (
    LONG,
    SavedFile,
    Table,
    as_files,
    as_table,
    pack_lines,
    read_lines,
    within_or_beside,
    write_table,
)
from ortdeploy.records import record
from ortdeploy.redaction import secret_setting
from ortdeploy.sources.files import full_path, state_in_stat

MAX_BYTES = 256 * 1024 * 1024
MAX_HASHED = 1024 * 1024 * 1024
"""Bytes of input files, in the order in which they are read, whose digests a plan file has. For the others it has size
and time, so that a plan for terabytes is saved at once."""

BOUND, OPEN = "bound", "open"
"""Kinds of plan files: one that fixes files, rows and parts, or one for another machine, which fixes no rows, no parts,
and no files of inputs that were not there when it was made."""

INPUTS = "inputs"
_SEVERAL = frozenset({INPUTS, "providers", "labels"})  # kinds of facts whose name is a plural

LEFT_OUT: Mapping[type, frozenset[str]] = {
    RunJob: frozenset({"retry", "letters"}),
    UpstreamJob: frozenset({"digests", "superseded"}),
    JobInput: frozenset(
        {"files", "first_row", "rows", "rerun", "rerun_rows", "unreadable", "rows_before", "elsewhere"}
    ),
    JobOutput: frozenset({"committed_rows", "replaces", "aside", "upgraded_at", "changed"}),
    JobLimits: frozenset({"forecast"}),
    OpenSession: frozenset({"thread_layouts", "tried_layouts"}),
    PlannedSession: frozenset({"predicted"}),
    PlannedDevice: frozenset({"library"}),
    PlannedCheck: frozenset({"record", "leak_runs", "synthetic_inputs"}),
    FinishedJob: frozenset({"rows", "new_run", "left_over", "unwritten", "unmade"}),
}
"""The fields of a plan that are left out of the file, by class."""

_VERSION = re.compile(r"[0-9]{1,4}\.[0-9]{1,4}(\.[0-9]{1,6})?([-+.a-z][-+.0-9A-Za-z]{0,40})?")
"""The version of an ONNX Runtime, as the schema of device files has it."""


_PATHS: Mapping[type, frozenset[str]] = {
    OpenSession: frozenset({"path"}),
    LoadAdapter: frozenset({"path"}),
    PlannedPreset: frozenset({"folder", "latents"}),
    PlannedPlace: frozenset({"path"}),
    HashedFile: frozenset({"path"}),
    PlannedCheck: frozenset({"root"}),
}
_OPTIONS: Mapping[type, frozenset[str]] = {
    OpenSession: frozenset({"options", "run_options"}),
    PlannedProvider: frozenset({"options"}),
    PlannedWireStep: frozenset({"options"}),
}


@record
class PlanToSave:
    """A plan for a plan file. `rows` are what `saved_rows` makes of the indexes of text files; open plans have none."""

    plan: Plan
    rows: Mapping[str, bytes] = field(default_factory=dict)


@record
class SavedPlan:
    """One plan of a plan file. `at` is its place in the file, which messages begin with.

    `manifest`, `overlays` and `roots` are full paths. `starts_over` are runs by job that make room for new ones.
    `rows` has for jobs that read text what `saved_rows` makes of the indexes of their files.
    `made` are the deployment, gates, steps and finished jobs as the file has them: to compare, never to do.
    """

    file: str
    at: str
    kind: str
    manifest: str
    profile: str | None
    sets: tuple[str, ...]
    overlays: tuple[str, ...]
    roots: tuple[str, ...]
    jobs: tuple[str, ...] | None
    starts_over: Mapping[str, str]
    facts: tuple[Fact, ...]
    inputs: Mapping[str, Sequence[SavedFile]]
    rows: Mapping[str, str | Table]
    made: Mapping[str, Any]

    @property
    def span(self) -> Span:
        """Where messages about the file point."""
        return Span(path=self.file, line=1, column=1)

    @property
    def named_files(self) -> dict[str, frozenset[str]]:
        """The paths of the input files that the plan names, by job."""
        return {job: frozenset(one.path for one in files) for job, files in self.inputs.items()}

    @property
    def fixed_files(self) -> dict[str, frozenset[str]]:
        """The paths of the only input files that the plan may read, by job; an open plan takes others too."""
        return {} if self.kind == OPEN else self.named_files

    @property
    def due(self) -> frozenset[str]:
        """The jobs that were to run when the plan was made."""
        return frozenset(step["job"] for step in self.made["steps"] if step["step"] == STEP_NAMES[RunJob])


def is_plan_file(raw: bytes) -> bool:
    """Return whether a file's first bytes look like a plan and not like a manifest."""
    return raw.lstrip().startswith(b"{") and b'"format_version"' in raw[:200]


def misplaced(plan_manifests: Sequence[str], overlays: Sequence[str], root: Path, roots: Sequence[str]) -> str | None:
    """Return the first file that lies outside of `root`, which a plan file cannot name."""
    named = (os.path.abspath(path) for path in (*plan_manifests, *overlays))  # noqa: PTH100  without following links
    return next((path for path in named if not _allowed(path, root, roots)), None)


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
    if is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        kept = [field.name for field in fields(value) if field.name not in LEFT_OUT.get(kind, ())]
        step = {"step": STEP_NAMES[kind]} if kind in STEP_NAMES else {}
        return step | {name: _saved_field(kind, name, getattr(value, name), folder) for name in kept}
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
        digest = None if room < 0 or is_url(state.path) else _digest_of(state, folder)
        yield [state.path, state.size, state.mtime_ns, digest]


def _digest_of(state: FileState, folder: str) -> str:
    """Return the digest of an input file that is still what was planned. Raises OrtdeployError."""
    path = Path(full_path(folder, state.path))
    try:
        digest, stat = file_digest(path), path.stat()
    except OSError as error:
        raise OrtdeployError(f"input file {state.path} cannot be read: {error.strerror}") from error
    if state_in_stat(stat) != (state.size, state.mtime_ns):
        raise OrtdeployError(f"input file {state.path} changed while the plan was made; plan again")
    return digest


def load_plans(
    raw: bytes, path: str, root: Path, roots: Sequence[str]
) -> tuple[tuple[SavedPlan, ...], tuple[Diagnostic, ...]]:
    """Read a plan file whose paths are relative to `root`; only its first problem is reported.

    It may name nothing outside of `root`, and of the `roots` that the command line allows.
    """
    document, wrong = read_plan_file(raw, path)
    if document is None:
        return (), wrong
    plans: list[SavedPlan] = []
    for index, one in enumerate(document.data["plans"]):
        try:
            plans.append(_load_plan(one, f"plans[{index}]", path, root, roots, document.data["kind"]))
        except OrtdeployError as error:
            return (), (unreadable(path, f"plans[{index}]{error}"),)
    return tuple(plans), ()


def read_plan_file(raw: bytes, path: str) -> tuple[Document | None, tuple[Diagnostic, ...]]:
    """Return a plan file as data of the right shape, or None with the diagnostic of its first problem."""
    try:
        data = _parse(raw)
    except OrtdeployError as error:
        return None, (unreadable(path, f"{path} cannot be read: {error}."),)
    span = Span(path=path, line=1, column=1)
    document = Document(path=path, data=data, spans={(): span}, keys={}, words={})
    wrong = check_document(document, "plan")
    return (None, wrong[:1]) if wrong else (document, ())


def unreadable(path: str, detail: str) -> Diagnostic:
    """Return the diagnostic of a plan file that cannot be used."""
    return stage_diagnostic("unreadable-plan", detail, Span(path=path, line=1, column=1))


def _parse(raw: bytes) -> Any:
    """Return the JSON of a plan file of this format version. Raises OrtdeployError."""
    if len(raw) > MAX_BYTES:
        raise OrtdeployError(f"it has more than {MAX_BYTES:,} bytes")
    try:
        data = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise OrtdeployError(f"it is not a plan file, or was changed by hand ({reason})") from error
    version = data.get("format_version") if isinstance(data, dict) else None
    if version != FORMAT_VERSION or isinstance(version, bool):
        said = json.dumps(version)
        shown = said if len(said) < 40 else f"{said[:39]}…"  # noqa: PLR2004  one line of a terminal
        raise OrtdeployError(
            f"it has format version {shown}; this ortdeploy reads {FORMAT_VERSION}. Make the plan again"
        )
    return data


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise OrtdeployError(f'it has the key "{twice}" twice')
    return found


def _refuse_constant(name: str) -> Any:
    raise OrtdeployError(f"{name} is not a number of JSON")


def _load_plan(data: Mapping[str, Any], at: str, file: str, root: Path, roots: Sequence[str], kind: str) -> SavedPlan:
    options = data["options"]
    try:
        json.dumps(options, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise OrtdeployError(".options: half of a surrogate pair is no text.") from error
    wanted = tuple(_full(path, root) for path in options["roots"])
    unallowed = next((path for path in wanted if path not in roots), None)
    if unallowed is not None:
        raise OrtdeployError(
            f".options.roots: the plan was made with --allow-root {_shown(unallowed)}. A plan file cannot allow a "
            "folder by itself: give the same --allow-root to apply."
        )
    return SavedPlan(
        file=file,
        at=at,
        kind=kind,
        manifest=_named(data["manifest"], ".manifest", root, roots),
        profile=options["profile"],
        sets=tuple(options["sets"]),
        overlays=tuple(_named(path, ".options.overlays", root, roots) for path in options["overlays"]),
        roots=wanted,
        jobs=None if options["jobs"] is None else tuple(options["jobs"]),
        starts_over=options["starts_over"],
        facts=tuple(Fact(**fact) for fact in data["facts"]),
        inputs={job: _load_files(files, f".{INPUTS}.{job}", file) for job, files in data[INPUTS].items()},
        rows={job: as_table(packed) for job, packed in data["rows"].items()},
        made={key: data[key] for key in ("deployment", "gates", "steps", "finished")},
    )


def _load_files(data: Any, at: str, file: str) -> Sequence[SavedFile]:
    """Return the input files of a job, from the plan file or from the table beside it. Raises OrtdeployError."""
    if isinstance(data, list):
        return tuple(SavedFile(path=path, size=size, mtime_ns=time, sha256=sha256) for path, size, time, sha256 in data)
    table = as_table(data)
    try:
        return as_files(read_lines(Path(file), table, table.files))
    except OrtdeployError as error:
        raise OrtdeployError(f"{at}: {error}.") from error


def _full(path: str, root: Path) -> str:
    return os.path.normpath(os.path.join(root, path))  # noqa: PTH118  joined as text, nothing is looked at


def _named(path: str, at: str, root: Path, roots: Sequence[str]) -> str:
    """Return a file that a plan names in full. Raises OrtdeployError if it leads out of what the plan may name."""
    full = _full(path, root)
    if os.path.isabs(path) or not _allowed(full, root, roots):  # noqa: PTH117  as text
        raise OrtdeployError(
            f"{at}: {_shown(path)} leads out of {root}. A plan file names files below its own folder, or below the "
            "folder that --root names; others need --allow-root."
        )
    return full


def _allowed(path: str, root: Path, roots: Sequence[str]) -> bool:
    """Return whether a full path lies below one of the roots, by its text and when links are followed."""
    inside = (str(root), *roots)
    try:
        by_text = any(path.startswith(one.rstrip(os.sep) + os.sep) for one in inside)
        return by_text and not outside(path, inside)
    except ValueError:  # no file can have a name with NUL in it
        return False


def planned_host(saved: SavedPlan, here: HostFacts) -> HostFacts:
    """Return the machine that a plan was made for, as the plan tells, for a process that makes no results itself.

    So `finish` may run on a machine without the devices, and workers are held against what they have.
    """
    told = {fact.kind: fact.value for fact in saved.facts}
    sessions = [one for step in saved.made["steps"] for one in step.get("candidates", ())]
    chosen = [one for session in sessions for one in session["providers"] if one["device"] is not None]
    devices = {
        (one["name"], one["device"]["index"]): DeviceFacts(provider=one["name"], library="", **one["device"])
        for one in chosen
    }
    version = told.get(VERSION, "")
    runtime = RuntimeFacts(
        version=version if _VERSION.fullmatch(version) else here.runtime.version,
        available_providers=tuple(told.get(PROVIDERS, "").split(", ")),
        max_ir_version=None,
        max_opsets={},
        packages=here.runtime.packages,
        devices=tuple(devices.values()),
    )
    return HostFacts(runtime=runtime, machine=None)


def moved_facts(saved: SavedPlan, now: Deployment, *, computes: bool) -> tuple[Diagnostic, ...]:
    """Return a diagnostic for each fact of a saved plan that has changed.

    Facts of the machine count only for a process that `computes`. Of an open plan, only the files that it names do.
    """
    facts = plan_facts(now, saved.jobs)
    then = {(fact.kind, fact.name): fact.value for fact in saved.facts}
    present = {(fact.kind, fact.name): fact.value for fact in facts if fact.kind != INPUTS}
    keys = dict.fromkeys([*then, *present])
    moved = [
        (kind, name)
        for kind, name in keys
        if (computes or kind not in OF_MACHINE) and then.get((kind, name)) != present.get((kind, name))
    ]
    named = {fact.name.partition(": ")[0]: fact.name for fact in facts if fact.kind == INPUTS}
    inputs = [
        (INPUTS, f"{named.get(f'job {one.job}', one.job)}: {change}")
        for one in plan_inputs(now, saved.jobs)
        if (change := _change_of_input(saved, one, now.spec.folder))
    ]
    return tuple(moved_fact(saved, kind, name) for kind, name in (*moved, *inputs))


def moved_fact(saved: SavedPlan, kind: str, name: str) -> Diagnostic:
    """Return the diagnostic for one fact that has changed."""
    verb = "are" if kind in _SEVERAL else "is"
    of_device = " with --device and the file that ortdeploy device writes on this machine"
    how = of_device if saved.kind == OPEN and kind in OF_MACHINE else ""
    return Diagnostic(
        rule="moved-fact",
        severity=Severity.ERROR,
        summary=SUMMARIES["moved-fact"],
        detail=f"The {kind} {verb} not what the plan was made from: {name}. Make the plan again{how}.",
        span=Span(path=saved.manifest, line=1, column=1),
        certainty=Certainty.MACHINE,
    )


def _change_of_input(saved: SavedPlan, now: PlannedFiles, folder: str) -> str | None:
    """Return which input file of a job changed or went; None if none did."""
    then, files = saved.inputs.get(now.job, ()), now.files
    if saved.kind == OPEN:
        named = {file.path for file in then}
        files = [state for state in files if state.path in named]
    elif now.job not in saved.inputs:
        return "the plan names none of its files"
    return None if _are_same(then, files, folder) else _change(then, files, folder)


def _are_same(then: Sequence[SavedFile], now: Sequence[FileState], folder: str) -> bool:
    """Return whether all files are as they were, in their order; a million of them are never all objects at once."""
    return len(then) == len(now) and all(
        file.path == state.path and not _is_changed(file, state, folder) for file, state in zip(then, now, strict=True)
    )


def _change(then: Sequence[SavedFile], now: Sequence[FileState], folder: str) -> str | None:
    """Return which file of a plan changed or went; None if none did. Times may differ, contents may not.

    `now` has none that arrived later.
    """
    present = {state.path: state for state in now}
    gone = [file.path for file in then if file.path not in present]
    changed = [file.path for file in then if file.path in present and _is_changed(file, present[file.path], folder)]
    told = [f"{path} {what}" for paths, what in ((gone, "is gone"), (changed, "changed")) for path in paths]
    if not told:
        moved = [file.path for file in then] != [state.path for state in now]
        return "their order changed" if moved else None
    more = f", and {len(told) - 1} more of {len(then)}" if len(told) > 1 else ""
    return f"{told[0]}{more}"


def _is_changed(then: SavedFile, now: FileState, folder: str) -> bool:
    if then.size != now.size:
        return True
    if then.mtime_ns == now.mtime_ns:
        return False
    if then.sha256 is None or is_url(now.path):
        return True
    return _digest_of(now, folder) != then.sha256


def compare(saved: SavedPlan, plan: Plan) -> Diagnostic | None:
    """Return the first difference between a saved plan and the one that was made here, or None."""
    ours = made(plan)
    listed = [done["job"] for done in ours["finished"]]
    found = next(
        (
            f"finished[{index}]: the plan file says that job {_shown(done['job'])} is finished, and here it is not"
            for index, done in enumerate(saved.made["finished"])
            if done["job"] not in listed
        ),
        None,
    ) or difference(saved.made, ours)
    if found is None:
        return None
    detail = f"{saved.at}.{found}. Nothing was run. Make the plan again with ortdeploy plan --out, and read it."
    return stage_diagnostic("edited-plan", detail, saved.span)


def difference(saved: Any, ours: Any, at: str = "") -> str | None:
    """Return the first place where two JSON values differ, in words; None if they do not."""
    if isinstance(saved, dict) and isinstance(ours, dict):
        inner = (
            difference(saved.get(key, _NOTHING), ours.get(key, _NOTHING), f"{at}.{key}" if at else key)
            for key in dict.fromkeys([*ours, *saved])
        )
        return next((found for found in inner if found), None)
    if isinstance(saved, list) and isinstance(ours, list):
        return next(_differences_of_lists(saved, ours, at), None)
    if type(saved) is type(ours) and saved == ours:
        return None
    return f"{at}: the plan file says {_shown(saved)}, the manifest gives {_shown(ours)}"


class _Nothing:
    """Stands for a value that one of two mappings lacks."""


_NOTHING = _Nothing()


def _differences_of_lists(saved: list[Any], ours: list[Any], at: str) -> Iterator[str]:
    for index, (one, other) in enumerate(zip(saved, ours, strict=False)):
        found = difference(one, other, f"{at}[{index}]")
        if found:
            yield found
    if len(saved) != len(ours):
        yield f"{at}: the plan file has {len(saved)}, the manifest gives {len(ours)}"


def _shown(value: Any) -> str:
    if isinstance(value, _Nothing):
        return "nothing"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:79]}…"  # noqa: PLR2004  one line of a terminal
