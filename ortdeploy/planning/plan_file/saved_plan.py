"""The plan file, which `plan --out` saves, as `apply` reads it.

A plan file may come from anyone, so nothing in it is carried out. It says which manifest was planned with which
options, the facts that the plan rested on, and its steps. `apply` plans again, compares, and runs its own plan. So the
file needs no secrets of options and URLs, and has none: it is kept in CI and copied to workers. `plan_writing` writes
it, and `saved_comparison` compares it with the plan that is made here.

Paths: a manifest, its overlays and roots are relative to the plan file's folder or to --root; everything inside a plan
is relative to its manifest. Long lists of input files lie beside the plan file: see `saved_tables`.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from ortdeploy.diagnostics import Diagnostic, OrtdeployError, Span
from ortdeploy.facts.variants import Choice
from ortdeploy.files.gate import outside
from ortdeploy.manifest.document import Document, stage_diagnostic
from ortdeploy.manifest.schema_check import check_document
from ortdeploy.plan.plan_file import STEP_NAMES
from ortdeploy.plan.steps import FORMAT_VERSION, Fact, RunJob
from ortdeploy.planning.plan_file.saved_tables import SavedFile, Table, as_files, as_table, read_lines
from ortdeploy.terminal_text import shortened

MAX_BYTES = 256 * 1024 * 1024

BOUND, OPEN = "bound", "open"
"""Kinds of plan files: one that fixes files, rows and parts, or one for another machine, which fixes no rows, no parts,
and no files of inputs that were not there when it was made."""

INPUTS = "inputs"


class SavedPlan(Struct, frozen=True, kw_only=True):
    """One plan of a plan file. `at` is its place in the file, which messages begin with.

    `choice` is how its profile was chosen. `manifest`, `overlays` and `roots` are full paths. `starts_over` are runs
    by job that make room for new ones.
    `rows` has for jobs that read text what `saved_rows` makes of the indexes of their files.
    `made` are the deployment, gates, steps and finished jobs as the file has them: to compare, never to do.
    """

    file: str
    at: str
    kind: str
    manifest: str
    profile: str | None
    choice: Choice | None
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
            f".options.roots: the plan was made with --allow-root {shown(unallowed)}. A plan file cannot allow a "
            "folder by itself: give the same --allow-root to apply."
        )
    return SavedPlan(
        file=file,
        at=at,
        kind=kind,
        manifest=_named(data["manifest"], ".manifest", root, roots),
        profile=options["profile"],
        choice=None if "choice" not in options else Choice(name=options["profile"], **options["choice"]),
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
            f"{at}: {shown(path)} leads out of {root}. A plan file names files below its own folder, or below the "
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


def shown(value: Any) -> str:
    """Return a value of a plan file as messages show it."""
    return shortened(json.dumps(value, ensure_ascii=False), 80)
