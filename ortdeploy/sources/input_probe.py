"""Finds a job's input files, and looks at what they hold."""

import os
from collections.abc import Callable, Collection, Sequence
from functools import partial, wraps
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, cast

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.counting import Counting
from ortdeploy.facts.data import (
    PLAIN,
    ArrivalPolicy,
    DeclaredInput,
    FileState,
    FileStates,
    InputFacts,
    KnownFile,
    KnownFiles,
    UnreadableFile,
)
from ortdeploy.facts.problems import CHANGED, WAITING, Problem
from ortdeploy.files.compact_list import CompactListWriter, Names
from ortdeploy.files.decoding import decoding
from ortdeploy.files.gate import PathEscapesError, PathGuard
from ortdeploy.files.listing import as_name, has_magic, in_full
from ortdeploy.files.memory_budget import RoomError
from ortdeploy.files.names import is_folder, is_there
from ortdeploy.files.path_suggestions import advice_on_path
from ortdeploy.files.urls import is_url
from ortdeploy.redaction import shown_path
from ortdeploy.sources.catalogue import FILE_IS_ROW, SOURCES, STREAMED, at_hand, indexes_of, look_at, windowing_of
from ortdeploy.sources.compression import is_compressed, one_of_each_suffix
from ortdeploy.sources.file_selection import NO_PROGRESS, Arrivals, HoldsTheSame, Progress, Settling, sort_arrivals
from ortdeploy.sources.files import InputPaths, file_states, full_path, list_files, shown, states_digest, unreadable
from ortdeploy.sources.fitting_format import format_of_files, mistaken, unfit
from ortdeploy.sources.protocol import Wanted

if TYPE_CHECKING:
    from ortdeploy.sources.row_index import CountedModule


_LOOKS = 5
_Asked = ParamSpec("_Asked")


def _again_if_files_go(look: Callable[_Asked, InputFacts]) -> Callable[_Asked, InputFacts]:
    """Look again at an input that cannot be read if files of it have gone meanwhile: they do not stop the others."""

    @wraps(look)
    def looks(*asked: _Asked.args, **options: _Asked.kwargs) -> InputFacts:
        for _ in range(_LOOKS):
            found = look(*asked, **options)
            if found.problem is None or all(is_url(path) or os.path.lexists(path) for path in found.files):
                break
        return found

    return looks


@_again_if_files_go
def probe_input(
    declared: DeclaredInput,
    packages: frozenset[str],
    *,
    known: Sequence[KnownFile] = (),
    state_dir: Path | None = None,
    counting: Counting = Counting.NOT,
    holds_the_same: HoldsTheSame = lambda _before, _now: False,
    progress: Progress = NO_PROGRESS,
) -> InputFacts:
    """Find a job's files, their format, and the beginning of the data.

    Known files whose rows are accounted for are left out, unless there are no others. The number of rows of text files
    is known from an index in `state_dir`, or counted if `counting` says so.
    """
    folder, policy = declared.folder, declared.arrivals
    try:
        files, states, later, unsettled = _files_for_now(declared, state_dir, known)
    except PathEscapesError as error:
        return InputFacts(problem=Problem(kind="outside", detail=f"{error}."))
    except OrtdeployError as error:
        return InputFacts(problem=Problem(kind="unreadable", detail=f"{error}."))
    if not files:
        return _without_files(declared, known, later, unsettled, progress)
    missing = _missing_names(declared, known) if policy.on_empty == "fail" else []
    if missing:
        return InputFacts(problem=Problem(kind="unmatched", detail=_unmatched(folder, missing)))
    some = one_of_each_suffix(files)
    name, problem = (declared.format, None) if declared.format else format_of_files(some, files, folder)
    if name is None:
        return InputFacts(files=files, problem=problem)
    package = SOURCES[name].PACKAGE
    if package and package.module not in packages:
        return InputFacts(format=name, files=files, missing_package=package)
    try:
        progress = replace(progress, by_file=name in FILE_IS_ROW)
        arrivals = sort_arrivals(states, known, policy, later | unsettled, holds_the_same, progress)
        arrived = _arrived(files, states, folder, arrivals, is_first=not known)
        facts = replace(
            arrived,
            format=name,
            unsettled=len(unsettled),
            row_type=declared.row_type,
            dialect=declared.dialect or PLAIN,
            settings=declared.settings,
            memory_limit=declared.memory_limit,
            carried=declared.carried,
        )
        if not facts.states and not facts.rerun:
            facts = _without(facts, folder, {*_noted(known)})
        facts = _without(facts, folder, _missed(facts))
        problem = unfit(name, some, declared)
        if problem or not facts.files:
            return replace(facts, problem=problem or _no_readable_file(facts, policy))
        count = _counter(name, declared, state_dir, counting=counting)
        look = _Look(name=name, declared=declared, known=known, count=count, counting=counting)
        return look.at_readable(facts)
    except OrtdeployError as error:
        return InputFacts(format=name, files=files, problem=Problem(kind="unreadable", detail=f"{error}."))


def _missed(facts: InputFacts) -> frozenset[str]:
    """Return the files that are gone and must not have changed; a retry, which may run all the same, has the others."""
    return frozenset(facts.changed).difference(state[0] for state in facts.present) if facts.changed else frozenset()


def _noted(known: Sequence[KnownFile]) -> frozenset[str]:
    """Return the files that could not be read when an earlier run has noted them."""
    return frozenset(path for path, one in KnownFiles.of(known).beside.items() if one.unreadable)


def _no_readable_file(facts: InputFacts, policy: ArrivalPolicy) -> Problem:
    """Return the problem of an input of which no file can be read, as earlier runs have found."""
    what = f"{facts.present[0].path} could not be read and counts as a failed row, and no file beside such is there"
    if policy.on_empty == "done":
        return Problem(kind=WAITING, detail=what)
    detail = f"{what}. Bring one that can be read, or write on_empty: done."
    return Problem(kind="unreadable", detail=detail)


_Count = Callable[[Sequence[str]], int | None]


class _Look(Struct, frozen=True, kw_only=True):
    """How the files of one input are looked at: by which format, and how their rows are counted, if at all."""

    name: str
    declared: DeclaredInput
    known: Sequence[KnownFile]
    count: _Count
    counting: Counting

    def at_readable(self, facts: InputFacts) -> InputFacts:
        """Return the facts with what the files hold, or without those that cannot be read. Raises OrtdeployError.

        A plan that fixes the parts of its jobs reads all of its files. If nothing is left to read, the first one stands
        for all. Their rows were run, so how they differ is no problem; and to look at an object may be to fetch it.
        """
        is_left = not self.known or facts.states or facts.rerun
        found = self._at(facts if is_left else replace(facts, files=facts.files[:1]))
        is_bound = self.counting is not Counting.NOT or self.declared.only is not None
        if found.problem is not None and self.name not in FILE_IS_ROW and not is_bound:
            found = self._set_aside(facts, found)
        if found.problem is None and found.differing and not found.columns:
            detail = f"{next(iter(found.differing.values()))}."
            return replace(found, problem=Problem(kind="unreadable", detail=detail))
        return found if found.problem is not None or found.columns else self._without_rows(found)

    def _without_rows(self, found: InputFacts) -> InputFacts:
        """Return the facts of files without a row: files that were read before show the columns, or the input waits."""
        apart = {*_noted(self.known), *(one.path for one in (*found.states, *found.rerun))}
        before = _without(replace(found, states=FileStates(), rerun=()), self.declared.folder, apart)
        columns = self._at(before).columns if before.files else {}
        if columns:
            return replace(found, columns=columns)
        detail = f"no file of {', '.join(map(shown_path, self.declared.patterns))} has a row"
        return replace(found, problem=Problem(kind=WAITING, detail=detail))

    def _at(self, facts: InputFacts) -> InputFacts:
        """Return the facts with what the files hold, or with what is wrong with one of them. Raises OrtdeployError."""
        folder, name = self.declared.folder, self.name
        present = facts.files.states if isinstance(facts.files, InputPaths) else facts.present
        with at_hand(name, facts.files, self.declared.patterns, present) as there:
            problem = mistaken(name, there, folder, declared=self.declared.format is not None)
            is_counted = self.counting is not Counting.NOT and name in STREAMED
            packed = next(filter(is_compressed, there), None) if is_counted else None
            facts = replace(facts, problem=problem, unseekable=packed and shown(packed, folder))
            return facts if problem else _seen(name, there, facts, self.known, self.count)

    def _set_aside(self, facts: InputFacts, found: InputFacts) -> InputFacts:
        """Return the facts without the new files that cannot be read, if there are others and the job lets files fail.

        `found` are the facts with all files, and the problem with one of them; it stays if no file alone is the reason.
        """
        declared = self.declared
        begun = {one.state.path for one in self.known if not one.done}
        noted = _noted(self.known)
        fresh = [one for one in facts.states if one.path not in begun]
        fresh += [one for one in facts.rerun if one.path in noted]
        reasons = _why_unreadable(self.name, declared, facts, fresh)
        rest = _without(facts, declared.folder, reasons)
        if not rest.states and not rest.rerun:
            rest = _without(rest, declared.folder, {*reasons, *noted})
        if not reasons or not rest.files:
            return found
        if not declared.sets_aside:
            detail = (
                f"{next(iter(reasons.values()))}. Bring the file again, or take it away; the other files wait. With "
                "errors: {max_failed: 1} it counts as a failed row, and they run."
            )
            return replace(found, problem=Problem(kind="unreadable", detail=detail))
        unreadable = tuple(
            UnreadableFile(**one._asdict(), reason=reasons[one.path]) for one in fresh if one.path in reasons
        )
        return replace(self._at(rest), unreadable=unreadable)


def _why_unreadable(
    name: str, declared: DeclaredInput, facts: InputFacts, states: Sequence[FileState]
) -> dict[str, str]:
    """Return why files cannot be read, by path.

    Raises OrtdeployError for a file that the system refuses, or that memory is too small for: it may be readable
    tomorrow without having changed.
    """
    found = {}
    for state in (one for one in states if not is_url(one.path)):
        path = full_path(declared.folder, state.path)
        wrong = mistaken(name, [path], declared.folder, declared=declared.format is not None)
        reason = _why_not_read(name, path, facts) if wrong is None else wrong.detail
        if reason is not None:
            found[state.path] = reason.replace(path, state.path).removesuffix(".")
    return found


def _why_not_read(name: str, path: str, facts: InputFacts) -> str | None:
    try:
        with decoding(path, name):
            problem = SOURCES[name].probe([path], facts).problem
    except OrtdeployError as error:
        if isinstance(error, RoomError) or isinstance(error.__cause__, MemoryError) or _is_of_the_system(error):
            raise
        return str(error)
    return None if problem is None else problem.detail


def _is_of_the_system(error: OrtdeployError) -> bool:
    """Return whether the system refused a file; decoders raise OSError too, without a number."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno is not None


def _without(facts: InputFacts, folder: str, paths: Collection[str]) -> InputFacts:
    """Return the facts without some files; if nothing else is to be read, the others that exist stand for them."""
    if not paths:
        return facts
    read = FileStates.pack(one for one in facts.states if one.path not in paths)
    rerun = tuple(one for one in facts.rerun if one.path not in paths)
    left = chain(read, rerun) if read or rerun else (one for one in facts.present if one.path not in paths)
    return replace(
        facts,
        files=InputPaths(folder, FileStates.pack(left)),
        states=read,
        rerun=rerun,
        rerun_rows=facts.rerun_rows - (len(facts.rerun) - len(rerun)),  # one row each
    )


_MOST_LOOKED_UP = 1000
"""The most files whose rows a plan sums up from their indexes without being asked to count."""


def _counter(name: str, declared: DeclaredInput, state_dir: Path | None, *, counting: Counting) -> _Count:
    """Return the function that counts the rows of some files, for text formats; None if they are not to be counted."""
    told = counting is Counting.TOLD
    dialect = declared.dialect or PLAIN
    settings = declared.settings
    indexes = (
        None
        if state_dir is None
        else indexes_of(name, state_dir, declared.folder, settings, told=told, dialect=dialect)
    )
    if indexes is None:
        return lambda _files: None
    if counting is not Counting.NOT:
        from ortdeploy.sources.row_counts import count_each, count_files  # noqa: PLC0415  only for a plan that is saved

        wanted = Wanted(dtypes={}, settings=settings, dialect=dialect, memory_limit=declared.memory_limit)
        windows = windowing_of(settings)
        if windows is not None:
            read = windows.reader(SOURCES[name], declared.folder, wanted)
            return lambda some: count_each(some, indexes, read)
        module = cast("CountedModule", SOURCES[name])
        read = partial(module.read_rows, folder=declared.folder, wanted=wanted)
        if name not in STREAMED:
            return lambda some: count_each(some, indexes, read)
        return lambda some: count_files(some, declared.patterns, indexes, declared.memory_limit, read)
    if not indexes.is_there:
        return lambda _files: None
    from ortdeploy.sources.row_index import known_rows  # noqa: PLC0415  only for text files

    return lambda some: None if len(some) > _MOST_LOOKED_UP else known_rows(some, indexes)


def _seen(name: str, files: Sequence[str], facts: InputFacts, known: Sequence[KnownFile], count: _Count) -> InputFacts:
    """Return the facts with the beginning of the data, and the number of rows to come. Raises OrtdeployError."""
    seen = look_at(name, files, facts)
    if seen.problem is not None:
        return seen
    to_come = files[: len(seen.states)] if known and seen.rerun else files
    rows = seen.rows if to_come is files else look_at(name, to_come, seen).rows
    if rows is None:
        rows = count(to_come)
    return replace(seen, rows=rows if seen.states or not known else 0)


_Now = tuple[Sequence[str], FileStates, frozenset[str], frozenset[str]]
"""Files to look at, their states, and paths of two kinds of others: those that a plan leaves, and unsettled ones."""


def _files_for_now(declared: DeclaredInput, state_dir: Path | None, known: Sequence[KnownFile]) -> _Now:
    """Return the files of an input and their states, without those that have gone since they were listed.

    Links to files that are gone may go like these. Raises OrtdeployError, and PathEscapesError if a file is outside of
    the manifest's tree.
    """
    found = list_files(declared.folder, declared.patterns)
    try:
        return _as_they_are(declared, state_dir, found)
    except OrtdeployError:
        done = {cells[0] for cells in KnownFiles.of(known).cells() if cells[3]}
        there = [path for path in found if is_url(path) or os.path.lexists(path)]
        left = [path for path in there if not _is_broken_link(path) or shown(path, declared.folder) not in done]
        if len(left) == len(found):
            raise
        return _as_they_are(declared, state_dir, left)


def _is_broken_link(path: str) -> bool:
    return not is_url(path) and os.path.islink(path) and not is_there(path)  # noqa: PTH114  text


def _as_they_are(declared: DeclaredInput, state_dir: Path | None, found: Sequence[str]) -> _Now:
    """Return which files are settled, and their states. Files of a plan were settled when it was made."""
    folder, settling = declared.folder, Settling(declared.arrivals.stable_for, state_dir)
    later: frozenset[str] = frozenset()
    unsettled: Sequence[str] = ()
    if declared.only is not None:
        files, later = _planned(found, folder, declared.only)
    else:
        try:
            files, unsettled = settling.settled(found)
        except OSError as error:
            raise unreadable(str(error.filename), error) from error
    states = file_states(files, folder, declared.patterns, PathGuard((folder, *declared.roots)))
    return files, states, later, frozenset(shown(path, folder) for path in unsettled)


def _planned(files: Sequence[str], folder: str, only: frozenset[str]) -> tuple[Sequence[str], frozenset[str]]:
    """Return the files of a plan, and the paths from the manifest of the others."""
    planned, later = CompactListWriter(Names), set()
    for path in files:
        name = shown(path, folder)
        if name in only:
            planned.add((path,))
        else:
            later.add(name)
    return planned.packed(), frozenset(later)


def _arrived(
    files: Sequence[str], states: FileStates, folder: str, arrivals: Arrivals, *, is_first: bool
) -> InputFacts:
    """Return which of the files that exist, in these states, are to be read; `is_first`: no run has read any."""
    to_read = FileStates.of(chain(arrivals.read, arrivals.rerun)) if arrivals.rerun else arrivals.read
    read = InputPaths(folder, to_read) if to_read and not is_first else files
    return InputFacts(
        files=read,
        states=arrivals.read,
        present=states,
        first_row=arrivals.first_row,
        changed=arrivals.changed,
        rerun=arrivals.rerun,
        rerun_rows=arrivals.rerun_rows,
        rows_before=arrivals.rows_before,
        gone=arrivals.gone,
        moved=arrivals.moved,
        digest=states_digest(states),
    )


def _missing_names(declared: DeclaredInput, known: Sequence[KnownFile]) -> list[str]:
    """Return the files and folders that are named one by one and not there, unless their rows were run before."""
    full = {one: in_full(declared.folder, one) for one in declared.patterns if not is_url(one)}
    missing = [one for one, path in full.items() if not (has_magic(path) or os.path.lexists(as_name(path)))]
    if not missing or declared.only is not None:
        return []
    known_cells = KnownFiles.of(known).cells()
    run = [full_path(declared.folder, path) for path, _, _, is_done, _, rows in known_cells if is_done or rows > 0]
    done = [f"{os.path.normpath(path)}/" for path in run]  # which leads by .. to another root
    return [one for one in missing if not any(path.startswith(f"{as_name(full[one])}/") for path in done)]


def _without_files(
    declared: DeclaredInput,
    known: Sequence[KnownFile],
    later: frozenset[str],
    unsettled: frozenset[str],
    progress: Progress,
) -> InputFacts:
    """Return the facts of an input without files: a problem, or an input that waits for files."""
    policy = declared.arrivals
    arrivals = sort_arrivals((), known, policy, later | unsettled, progress=progress)
    if arrivals.changed:
        return InputFacts(changed=arrivals.changed, problem=Problem(kind=CHANGED, detail=""))
    if unsettled:
        many = f"{len(unsettled)} files have" if len(unsettled) > 1 else "1 file has"
        detail = f"{many} changed less than {policy.stable_for:g} s ago"
        return InputFacts(gone=arrivals.gone, unsettled=len(unsettled), problem=Problem(kind=WAITING, detail=detail))
    if policy.on_empty == "done":
        detail = f"no file matches {', '.join(map(shown_path, declared.patterns))}"
        return InputFacts(gone=arrivals.gone, problem=Problem(kind=WAITING, detail=detail))
    return InputFacts(problem=Problem(kind="unmatched", detail=_unmatched(declared.folder, declared.patterns)))


def _unmatched(folder: str, patterns: Sequence[str]) -> str:
    """Return why patterns match nothing: a folder stands for the files directly in it, and may have none."""
    for pattern in patterns:
        place = Path(folder) / pattern
        if not is_url(pattern) and is_folder(str(place)):
            deeper = any(map(is_folder, map(str, place.iterdir())))
            advice = f" Write {pattern.rstrip('/')}/**/* for those of the folders in it." if deeper else ""
            return f"{pattern} is a folder without files directly in it.{advice} Paths are relative to the manifest."
    near = next(filter(None, (_near(folder, pattern) for pattern in patterns[:3])), "")
    shown = ", ".join(map(shown_path, patterns))
    return f"No file matches {shown} in {folder}. Paths are relative to the manifest.{near}"


def _near(folder: str, pattern: str) -> str:
    return "" if is_url(pattern) else advice_on_path(pattern, str(Path(folder) / pattern))
