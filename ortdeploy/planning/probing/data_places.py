"""Looks at what a job reads and writes: its input files, its output, and what the ledger knows of both."""

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.counting import Counting
from ortdeploy.facts.data import STRICT_ARRIVALS, DeclaredInput, FileState, InputFacts, KnownFile, OutputFacts
from ortdeploy.facts.problems import ELSEWHERE, Package, Problem
from ortdeploy.files.digest_cache import DigestCache
from ortdeploy.files.disk import free_bytes
from ortdeploy.files.gate import decides, outside
from ortdeploy.files.names import BOUND, DECISIONS, is_file, is_folder, is_there, is_there_now, name_aside
from ortdeploy.files.urls import decoded, is_url
from ortdeploy.ledger.archived_outputs import put_aside_before
from ortdeploy.ledger.damage import FILE, damaged
from ortdeploy.ledger.integrity import committed_rows, find_damage
from ortdeploy.ledger.ledger import now
from ortdeploy.ledger.opening import named_ledger, read_ledger
from ortdeploy.ledger.output_lock import is_live
from ortdeploy.ledger.records import OutputRecord, Part, output_key
from ortdeploy.ledger.rewrites import is_left_over
from ortdeploy.redaction import shown_path
from ortdeploy.shell import pip_install
from ortdeploy.sinks.catalogue import SINKS
from ortdeploy.sources.catalogue import SOURCES, format_by_suffix
from ortdeploy.sources.file_selection import NO_PROGRESS, KnownContents, Progress
from ortdeploy.sources.input_probe import probe_input

if TYPE_CHECKING:
    from ortdeploy.files.shared_place import SharedPlace
    from ortdeploy.ledger.open_plans import SharedParts


class DataPlaces(Struct, frozen=True, kw_only=True):
    """What a job reads and writes, copied from the manifest, so that both can be looked at without the manifest.

    `output` is the full path of the folder that is written into; from there it is uploaded to the `url`, if there is
    one. The other fields are those of the manifest.
    """

    job: str
    input: DeclaredInput
    output: str
    shown: str
    url: str | None
    output_format: str
    removable: bool

    @property
    def place(self) -> Path:
        """The folder that is written into."""
        return Path(self.output)


class Before(Struct, frozen=True, kw_only=True):
    """The ledger's record of a job's output, the layout of its last part, and the input files that it was made from.

    `elsewhere` is what the output's store has, if it was asked. `rows` are those in committed parts, and in one that
    the next run commits before it does anything else.
    """

    record: OutputRecord | None = None
    rows: int = 0
    inputs: Sequence[KnownFile] = ()
    layout: Mapping[str, Any] | None = None
    elsewhere: "SharedParts | None" = None

    @property
    def first_row(self) -> int:
        """How many rows came from other files, in finished runs."""
        return self.record.first_row if self.record else 0

    @property
    def progress(self) -> Progress:
        """How many rows came from files of finished runs, and how many are committed."""
        return Progress(first_row=self.record.first_row, rows=self.rows) if self.record else NO_PROGRESS


def load_previous(places: DataPlaces, state_dir: Path) -> Before:
    """Return what the ledger knows of an output folder; nothing if the output starts over.

    It starts over if the user deleted an output that is not removable, or if an earlier run was killed while it put the
    output aside. The rows of finished files are included only if they may run again.
    """
    with read_ledger(state_dir) as ledger:
        if ledger is None:
            return Before()
        key = output_key(places.place, state_dir)
        record = ledger.output(key)
        elsewhere = None
        if not (places.removable or is_there(places.place)):
            if record is None:
                return Before()
            with suppress(OrtdeployError):  # whoever works on the output says why
                elsewhere = _on_store(places)
                if elsewhere is None or not elsewhere.names or _is_made_anew(elsewhere, record):
                    return Before(elsewhere=elsewhere)
        if record is not None and put_aside_before(ledger, places.place, record) is not None:
            return Before()
        last = record.parts[-1].deployment if record and record.parts else None
        maker = ledger.made_by(last)
        layout = maker.layout if maker else None
        inputs = ledger.inputs(key, spans=places.input.arrivals.on_change == "rerun")
        rows = committed_rows(record, places.place) if record is not None else 0
        return Before(record=record, rows=rows, inputs=inputs, layout=layout, elsewhere=elsewhere)


def _is_made_anew(elsewhere: "SharedParts", record: OutputRecord) -> bool:
    """Return whether shards make parts again that the ledger has, because they were deleted on the store.

    If that cannot be found out, whoever works on the output says why.
    """
    if record.status != "done":
        return False
    with suppress(OSError, OrtdeployError, ValueError, TypeError, LookupError):
        return any(_lacks_parts(elsewhere.place, plan, record) for plan in elsewhere.open)
    return False


def _lacks_parts(place: "SharedPlace", plan: str, record: OutputRecord) -> bool:
    """Return whether parts are gone that the ledger has and the plan makes. Raises what `_is_made_anew` suppresses."""
    from ortdeploy.plan.part_table import read_part_table  # noqa: PLC0415  only for shards

    bound = place.read(f"{DECISIONS}/{plan}/{BOUND}")
    first = 0 if bound is None else read_part_table(bound).first_number  # None: killed before it began
    return any(one.file and one.number >= first and not place.exists(one.file) for one in record.parts)


def _stale_output(places: DataPlaces, before: Before, *, new_run: bool) -> OutputFacts:
    """Return the facts of an output that makes room for a new run; the ledger may not know it, if shards made it.

    Raises OrtdeployError if its store does not answer.
    """
    known = before.record
    run = _plan_in(_shared(places, before, asks=new_run)) if known is None else known.run
    begun = now() if known is None else known.started
    aside = decoded(name_aside(places.place, begun).name).rpartition("/")[2]  # a mirror's name is a URL
    return OutputFacts(state="stale", run=run, aside=aside)


def _on_store(places: DataPlaces) -> "SharedParts | None":
    """Return what shards have on the store of an output; None if they cannot share it. Raises OrtdeployError."""
    if places.url is None or not decides(places.url):
        return None
    from ortdeploy.files.shared_store import SharedStore  # noqa: PLC0415  only for an object store
    from ortdeploy.ledger.open_plans import shared_parts  # noqa: PLC0415

    return shared_parts(SharedStore(places.url))


def _in_folder(folder: Path, roots: Sequence[str]) -> "SharedParts | None":
    """Return what shards have in a local output; None if they have nothing, or if it cannot be looked at."""
    if not is_there_now(folder / DECISIONS):
        return None
    from ortdeploy.files.shared_folder import SharedFolder  # noqa: PLC0415  only where shards have worked
    from ortdeploy.ledger.open_plans import shared_parts  # noqa: PLC0415

    with suppress(OSError):
        return shared_parts(SharedFolder(folder, roots))
    return None


def look_at_input(
    places: DataPlaces, packages: frozenset[str], before: Before, state_dir: Path, *, counting: Counting = Counting.NOT
) -> InputFacts:
    """Find the input files of a job that reads files, and the beginning of their data; `counting` is the source's."""
    facts = probe_input(
        places.input,
        packages,
        known=before.inputs,
        state_dir=state_dir,
        counting=counting,
        holds_the_same=KnownContents(places.input.folder, partial(_contents, places, state_dir)).are_in,
        progress=before.progress,
    )
    return replace(
        facts,
        first_row=max(facts.first_row, before.first_row),  # of what could not be looked at, only the latter is known
        repairable=_repairable(facts.changed, before, state_dir),
    )


def _repairable(changed: Sequence[str], before: Before, state_dir: Path) -> tuple[str, ...]:
    """Return the changed files of which rows have failed, so that `retry` may run them from what the files are now."""
    if not changed or before.record is None or not before.record.failed:
        return ()
    with read_ledger(state_dir) as ledger:
        parts = {} if ledger is None else ledger.failed_rows(before.record.output)
    failed = {row.path for rows in parts.values() for row in rows.values()}
    return tuple(path for path in changed if path in failed)


def _contents(places: DataPlaces, state_dir: Path) -> Mapping[FileState, bytes]:
    """Return what the ledger says that input files held. Raises OrtdeployError if it is damaged."""
    with read_ledger(state_dir) as ledger:
        return {} if ledger is None else ledger.contents(output_key(places.place, state_dir))


def input_elsewhere(
    places: DataPlaces,
    packages: frozenset[str],
    state_dir: Path,
    of_steps: Collection[Package],
    *,
    counting: Counting = Counting.NOT,
) -> InputFacts:
    """Return the input of a job on another machine, which has these packages: what is here of it stands for it.

    If nothing is here, or this machine lacks a package to read or prepare it, only its format is known. Files of a
    fresh checkout are all new, so how long ago they changed says nothing.
    """
    from importlib.util import find_spec  # noqa: PLC0415  only to plan for another machine

    here = frozenset(name for name in packages if find_spec(name))
    declared = replace(places.input, arrivals=STRICT_ARRIVALS)
    found = look_at_input(replace(places, input=declared), here, Before(), state_dir, counting=counting)
    why_not = _why_not_looked_at(places, found, [one for one in of_steps if one.module in packages - here], packages)
    if why_not is None:
        return found
    return input_unseen(places, packages, why_not)


def input_unseen(places: DataPlaces, packages: frozenset[str], why_not: str) -> InputFacts:
    """Return the input of a job on another machine of which only its format is known, by what the manifest says."""
    name = places.input.format or format_by_suffix(places.input.patterns)
    return InputFacts(
        format=name,
        row_type=places.input.row_type,
        memory_limit=places.input.memory_limit,
        missing_package=_missing(SOURCES[name].PACKAGE, packages) if name else None,
        problem=Problem(kind=ELSEWHERE, detail=why_not),
    )


def _why_not_looked_at(
    places: DataPlaces, found: InputFacts, lacking: Sequence[Package], packages: frozenset[str]
) -> str | None:
    """Return why an input of another machine was not looked at; None if it was, or if something is wrong with it."""
    if found.problem is not None and found.problem.kind == "unmatched":
        return f"No file here matches {', '.join(map(shown_path, places.input.patterns))}."
    if found.problem is not None:
        is_unreachable = not found.files and any(map(is_url, places.input.patterns))
        return found.problem.detail if is_unreachable else None
    if found.missing_package is not None and found.missing_package.module in packages:
        lacking = [found.missing_package]
    if not lacking:
        return None
    return f"{lacking[0].name} is not installed here: {pip_install(f'ortdeploy[{lacking[0].extra}]')}."


def output_elsewhere(places: DataPlaces, packages: frozenset[str]) -> OutputFacts:
    """Return the output of a job on another machine: what is here says nothing of what is there."""
    return OutputFacts(missing_package=_missing_package(places, packages))


def look_at_output(
    places: DataPlaces,
    packages: frozenset[str],
    before: Before,
    state_dir: Path,
    *,
    stale: bool = False,
    new_run: bool = False,
) -> OutputFacts:
    """Look at the place that a job writes to; `stale`: a new run will put aside what is there.

    `new_run`: whether that may be so is asked; then a store is asked too if the ledger knows nothing of the output.
    """
    try:
        found = (
            _stale_output(places, before, new_run=new_run)
            if stale
            else _probe_output(places, before, state_dir, new_run=new_run)
        )
    except OrtdeployError as error:
        found = OutputFacts(problem=Problem(kind="unreachable", detail=f"{error}."))
    return replace(
        found,
        missing_package=_missing_package(places, packages),
        free_bytes=free_bytes(places.place),
    )


def _missing_package(places: DataPlaces, packages: frozenset[str]) -> Package | None:
    return _missing(SINKS[places.output_format].PACKAGE, packages)


def _missing(package: Package | None, packages: frozenset[str]) -> Package | None:
    return package if package and package.module not in packages else None


def _probe_output(places: DataPlaces, before: Before, state_dir: Path, *, new_run: bool) -> OutputFacts:
    """Return the facts of an output as it is. Raises OrtdeployError if its store does not answer."""
    folder, shown = places.place, places.shown
    roots = (places.input.folder, *places.input.roots)
    problem = unwritable(folder, shown, roots) or (None if places.url else _entangled(folder, shown, state_dir))
    read_only = problem if problem is not None and problem.kind == "read-only" else None
    if problem is not read_only:
        return OutputFacts(problem=problem)
    shared = _shared(places, before, asks=new_run)
    shards = None if shared is None else "open" if shared.open else "closed"
    found = _look_at_folder(places, state_dir, before, shards)
    if found.state == "foreign" and shards is not None:
        found = replace(found, run=_plan_in(shared))
    may_write = read_only is None and shards != "open" and found.state == "finished" and not found.problem
    left_over = may_write and _is_left_over(folder, state_dir, before, shared)
    return replace(found, read_only=read_only, shards=shards, left_over=left_over)


def _is_left_over(folder: Path, state_dir: Path, before: Before, shared: "SharedParts | None") -> bool:
    """Return whether killed processes have left something: a compact or retry to complete, or litter of a shard."""
    if before.record is None or is_live(state_dir, before.record.output):
        return False
    is_untidy = shared is not None and bool(shared.untidy)
    try:
        return bool(is_untidy or before.record.rewrites) or is_left_over(folder)
    except OSError:
        return False


def _shared(places: DataPlaces, before: Before, *, asks: bool) -> "SharedParts | None":
    """Return what processes that share the parts of an output have there; None if there is nothing.

    A store is asked if the ledger knows the output but its folder is not here, as another machine may have made it.
    If the ledger does not know it, a store is asked only if the caller `asks`. Raises OrtdeployError.
    """
    found = before.elsewhere
    if places.url is None:
        found = _in_folder(places.place, (places.input.folder, *places.input.roots))
    elif is_there(places.place) or not (asks or before.record is not None):
        return None
    elif found is None:
        found = _on_store(places)
    return found if found is not None and found.names else None


def _plan_in(shared: "SharedParts | None") -> str | None:
    """Return what a new run that replaces parts of shards knows them by."""
    return None if shared is None else min(shared.names)


def _look_at_folder(places: DataPlaces, state_dir: Path, before: Before, shards: str | None) -> OutputFacts:
    """Look at an existing output folder."""
    folder = places.place
    if before.record is None and not is_there(folder):
        return OutputFacts() if shards is None else OutputFacts(state="foreign")
    if before.record is None and shards is None and all(one.name == DECISIONS for one in folder.iterdir()):
        return OutputFacts(state="empty")  # a shard that was killed before its plan began may have left that folder
    if before.record is None:  # a run that began meanwhile is in the ledger before it writes a file
        before = load_previous(places, state_dir)
    if before.record is None:
        return OutputFacts(state="foreign", ledger=_named_ledger(folder, state_dir))
    is_elsewhere = places.url is not None and shards is not None
    return _own_output(places, before, DigestCache(state_dir), is_elsewhere=is_elsewhere)


def _own_output(places: DataPlaces, before: Before, digests: DigestCache, *, is_elsewhere: bool) -> OutputFacts:
    """Return the facts of an output that the ledger knows; files that are `elsewhere` only `finish` looks at."""
    folder, record = places.place, before.record
    if record is None:
        raise AssertionError("the ledger knows this output")
    removable = places.removable or is_elsewhere
    damage = _damage(folder, places.shown, record, digests, removable=removable)
    parts = _parts_to_come(folder, record)
    makers = [(part.deployment, part.start) for part in parts]
    made = tuple(one for place, one in enumerate(makers) if not place or makers[place - 1][0] != one[0])
    is_finished = record.status == "done"
    return OutputFacts(
        state="finished" if is_finished else "part",
        run=record.run,
        identity=record.identity if is_finished or not record.is_bare else {},
        rows=record.forgotten.rows + sum(part.rows for part in parts),
        committed=record.committed,
        failed=record.failed,
        skipped=record.skipped,
        made=made,
        layout=before.layout,
        problem=damage,
        threads=record.statistics.get("layout"),
    )


def _parts_to_come(folder: Path, record: OutputRecord) -> tuple[Part, ...]:
    """Return the committed parts, and a begun part that is whole, because the next run commits it first."""
    begun = record.begun
    if begun is None or begun.name is None or begun.part.file is None:
        return record.parts
    is_whole = any(is_file(folder / name) for name in (begun.part.file, begun.name))
    return (*record.parts, begun.part) if is_whole else record.parts


def _named_ledger(folder: Path, state_dir: Path) -> str | None:
    """Return the ledger that an output names, and whether it exists, or is the one that does not know this folder."""
    name = named_ledger(folder)
    if name is None:
        return None
    if not is_file(folder / name):
        return f"{name}, which is not there"
    is_ours = is_file(state_dir / FILE) and (folder / name).samefile(state_dir / FILE)
    return f"{name}, which does not know this folder: if it was moved, move it back" if is_ours else name


_INNER_FOLDERS = (DECISIONS, "images", "recordings")
"""The folders that are made in outputs."""


def unwritable(folder: Path, shown: str, roots: Sequence[str]) -> Problem | None:
    """Return why a folder cannot be written into, or made; with `roots`, also if a link leads out of them."""
    existing = folder
    while not os.path.lexists(existing):
        existing = existing.parent
    if not is_folder(existing):
        detail = f"{shown} cannot be a folder: {existing} is a file. Choose another place."
        return Problem(kind="not-a-folder", detail=detail)
    if roots and outside(str(existing), roots):
        return Problem(kind="outside", detail=f"{shown} leads through a link out of the manifest's folder tree.")
    for name in _INNER_FOLDERS if roots else ():
        if outside(str(folder / name), (str(folder), *roots)):
            detail = f"{shown}/{name} is a link out of the manifest's folder tree. Allow its root with --allow-root."
            return Problem(kind="outside", detail=detail)
    if not os.access(existing, os.W_OK | os.X_OK):
        detail = f"{existing} cannot be written by this user, or its file system is read-only. Choose another place."
        return Problem(kind="read-only", detail=detail)
    try:
        folder.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:  # a name that is too long, say
        return Problem(kind="not-a-folder", detail=f"{shown} cannot be a folder: {error.strerror}.")
    return None


def _entangled(folder: Path, shown: str, state_dir: Path) -> Problem | None:
    """Refuse an output that contains the state directory or lies in it, because a new run renames old outputs."""
    output, state = (Path(os.path.realpath(one)) for one in (folder, state_dir))  # resolve() raises for loops
    if output == state or output in state.parents:
        where = "holds"
    elif state in output.parents:
        where = "lies in"
    else:
        return None
    detail = f"{shown} {where} the state directory {state_dir}, where ortdeploy keeps its ledger. Choose another place."
    return Problem(kind="state", detail=detail)


def shared_with(name: str, places: Mapping[str, DataPlaces]) -> Problem | None:
    """Refuse an output whose folder is, by way of links, that of another job, lies in it or holds it."""
    own = Path(os.path.realpath(places[name].place))
    for other, one in places.items():
        folder = Path(os.path.realpath(one.place))
        if other != name and (folder == own or folder in own.parents or own in folder.parents):
            detail = (
                f'{places[name].shown} leads to {own}, and {one.shown}, where job "{other}" writes, to {folder}. Give '
                "each job a folder of its own."
            )
            return Problem(kind="shared", detail=detail)
    return None


def _damage(
    folder: Path,
    shown: str,
    record: OutputRecord,
    digests: DigestCache,
    *,
    removable: bool,
) -> Problem | None:
    """Check the ledger against itself, and its committed parts against the files."""
    from ortdeploy.ledger.check import find_contradiction  # noqa: PLC0415  only where something is committed

    contradiction = find_contradiction(record)
    if contradiction is not None:
        return Problem(kind="damaged", detail=f"Of {shown}, {damaged(contradiction)}.")
    what = find_damage(folder, record.parts, digests.digest, rewrites=record.rewrites, removable=removable)
    if what is None:
        return None
    otherwise = (
        "Or carry it away: its rows stay committed."
        if removable
        else f"Or move the whole folder {shown} elsewhere, where its other parts are kept, and the job runs from its "
        "first row. If parts are carried away on purpose, write output: {removable: true}."
    )
    detail = f"{shown}/{what}. Restore it from a copy. {otherwise}"
    return Problem(kind="damaged", detail=detail)
