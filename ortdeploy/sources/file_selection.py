"""Chooses the files that the next run of a recurring job reads, while files arrive, change and go.

A file is settled if nothing has changed it for the time that the manifest says. The later of its two times counts: a
copy may keep the old modification time, but not the time of the change of its inode. A time in the future comes from a
clock that was set back; such a file is settled when two looks have found it the same. When a clock is set forward, what
is being written seems to be old, so nothing is settled for that time. Object stores show whole objects only, so their
files are settled at once.
"""

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum, auto
from itertools import chain, takewhile
from pathlib import Path
from typing import Any

from msgspec import Struct, ValidationError, convert
from msgspec.structs import replace

from ortdeploy.facts.data import GONE, ArrivalPolicy, FileState, FileStates, KnownFile, KnownFiles
from ortdeploy.files.compact_list import CompactListWriter, Names, joined, next_of
from ortdeploy.files.digests import boot_id, content_digest
from ortdeploy.files.disk import make_folders
from ortdeploy.files.urls import is_url
from ortdeploy.sources.files import full_path
from ortdeploy.state import memo

KIND = "future-files"
"""The kind, of the memo, of files with a time in the future, as the last look found them."""
CLOCK = "clock"
"""The kind of what is known of the clock: the boot, when that was by this clock, and when this clock was set."""
_LEAST_JUMP = 1_000_000_000
"""Nanoseconds by which a clock that was set differs; a process may wait between its looks at two clocks."""


class Arrivals(Struct, frozen=True, kw_only=True):
    """The files of an input: the next run will `read` these, in the order of its rows.

    `changed` are known files whose change forbids a run. `rerun` are known files whose content has changed and whose
    rows run again, `rerun_rows` in all. `gone` are files that are gone, whose rows are accounted for; no run has noted
    that yet. New files with the size and time of one of these are `moved`, each with its path before and now.
    `first_row` rows came from files that are done, and the last `rows_before` of them are the first of the first file:
    a run was ended within it.
    """

    read: FileStates
    changed: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    moved: tuple[tuple[str, str], ...] = ()
    rerun: tuple[FileState, ...] = ()
    rerun_rows: int = 0
    first_row: int = 0
    rows_before: int = 0


class Progress(Struct, frozen=True, kw_only=True):
    """How far a job has come: `first_row` rows came from files of finished runs, and `rows` are in committed parts.

    `by_file`: each file is one row.
    """

    first_row: int = 0
    rows: int = 0
    by_file: bool = False


NO_PROGRESS = Progress()

HoldsTheSame = Callable[[FileState, FileState], bool]
"""Returns whether a file, in the second state, holds what it held in the first one; False if that is not known."""


class KnownContents(Struct):
    """What input files held when their rows were run; `read` is called for the first file that needs it.

    `folder` is the manifest's.
    """

    folder: str
    read: Callable[[], Mapping[FileState, bytes]]
    _known: Mapping[FileState, bytes] | None = None

    def are_in(self, before: FileState, now: FileState) -> bool:
        """Return whether a file, in the second state, holds what it held in the first one. Raises what `read` does."""
        if now.size != before.size or is_url(now.path):
            return False
        self._known = self.read() if self._known is None else self._known
        digest = self._known.get(before)
        path = full_path(self.folder, now.path)
        return digest is not None and content_digest(path, now.size, now.mtime_ns) == digest


def sort_arrivals(
    states: Sequence[FileState],
    known: Sequence[KnownFile],
    policy: ArrivalPolicy,
    unsettled: Collection[str] = (),
    holds_the_same: HoldsTheSame = lambda _before, _now: False,
    progress: Progress = NO_PROGRESS,
) -> Arrivals:
    """Compare the settled files that exist with those that earlier runs have read; `unsettled` are paths of the others.

    Files of an unfinished run come first, in their order. If they are not as they were, those whose rows are all
    committed count as done, and those without committed rows are read as they are; the one between must be unchanged,
    unless its rows may run again. A file whose rows are accounted for may go; if it comes back with other content, it
    counts as a new file. A file with another time and the same content is as it was.
    """
    present, files = FileStates.of(states), KnownFiles.of(known)
    first_row = progress.first_row
    if not files:
        return Arrivals(read=present, first_row=first_row)
    gone_again = policy.on_remove == "refuse"
    differing = compare(present, files, gone_again=gone_again)
    if any(not one.done and not _is_as_known(one, differing.now[one.state.path]) for one in differing.known):
        through = accounted_for(files, progress)
        if through is not None:
            first_row = progress.rows
            files = _cut_off(files, through, differing.now)
            differing = compare(present, files, gone_again=gone_again)
    others = [(one, differing.now[one.state.path]) for one in differing.known]
    underway = [(one, now) for one, now in others if not one.done]
    altered = [(one, now) for one, now in underway if not holds_what_it_held(one, now, holds_the_same)]
    rerun = [one for one, now in altered if policy.on_change == "rerun" and now is not None]
    again = {one.state.path for one in rerun}
    unfinished = [(one, now) for one, now in underway if one.state.path not in again]
    changed = [one.state.path for one, _ in altered if one.state.path not in again]
    begun = _begun(files, {one.state.path: now for one, now in unfinished}, again)
    fates = [(one, _fate(one, now, policy, unsettled, holds_the_same)) for one, now in others if one.done]
    rerun += [one for one, fate in fates if fate is _Fate.AGAIN]
    changed += [one.state.path for one, fate in fates if fate is _Fate.CHANGED]
    anew = {one.state.path for one, fate in fates if fate is _Fate.ANEW}
    gone = [one for one, fate in fates if fate is _Fate.GONE]
    if policy.on_remove == "refuse":
        changed += [one.state.path for one in gone]
    new = _in_order(present, differing.new, anew) if anew else differing.new
    read = FileStates.pack(chain(begun, new.cells()))
    return Arrivals(
        read=read,
        changed=tuple(changed),
        gone=tuple(one.state.path for one in gone if not one.gone),
        moved=_moved([one.state for one in gone if not one.gone], new),
        rerun=tuple(now for one in rerun if (now := differing.now[one.state.path]) is not None),
        rerun_rows=sum(one.span[1] for one in rerun if one.span is not None),
        first_row=first_row,
        rows_before=rows_before(read, files, first_row),
    )


def accounted_for(known: KnownFiles, progress: Progress) -> tuple[str, ...] | None:
    """Return the files of an unfinished run whose rows are all committed: they are its first ones.

    None if it is not noted of which file each committed row is, as in outputs of earlier versions.
    """
    underway, last, end = [*known.underway()], 0, progress.first_row
    for place, (*_, begin, rows) in enumerate(underway, 1):
        if rows > 0:
            if begin != end and (last or begin > end):
                return None
            last, end = place, begin + rows
    if end != progress.rows:
        return None
    is_whole = progress.by_file or any(begin == progress.rows for *_, begin, _ in underway[last:])
    return tuple(cells[0] for cells in underway[: last if is_whole else max(0, last - 1)])


def _cut_off(files: KnownFiles, through: Sequence[str], now: Mapping[str, FileState | None]) -> KnownFiles:
    """Return known files where those `through` are done, and where those without committed rows are as they are now."""
    done, kept = {*through}, []
    for cells in files.cells():
        path, rows = cells[0], cells[5]
        if path in done:
            kept.append((*cells[:3], 1, *cells[4:]))
        elif cells[3] or rows > 0 or path not in now:
            kept.append(cells)
        elif (state := now[path]) is not None:
            kept.append((*state, *cells[3:]))
    found = KnownFiles.pack(kept)
    found.beside = {path: replace(one, done=one.done or path in done) for path, one in files.beside.items()}
    return found


class _Fate(Enum):
    """What becomes of a file whose rows are accounted for."""

    STAYS = auto()
    GONE = auto()
    AGAIN = auto()
    ANEW = auto()
    CHANGED = auto()


def _fate(
    one: KnownFile, now: FileState | None, policy: ArrivalPolicy, unsettled: Collection[str], same: HoldsTheSame
) -> _Fate:
    """Return what becomes of a file whose rows are accounted for; `now` is its state, None if it is not there."""
    if now is None:  # unless it is there, and what it becomes is the next run's business
        return _Fate.STAYS if one.state.path in unsettled else _Fate.GONE
    if one.rerun is None and holds_what_it_held(one, now, same):
        return _Fate.STAYS
    if one.unreadable and one.span is not None:  # its failed row makes room for all that it holds now
        return _Fate.AGAIN
    if policy.on_change == "append" or _is_another(one, now):
        return _Fate.ANEW
    return _Fate.AGAIN if policy.on_change == "rerun" and one.span is not None else _Fate.CHANGED


def _begun(files: KnownFiles, differing: Mapping[str, FileState | None], again: Collection[str]) -> Iterator[FileState]:
    """Yield the files of an unfinished run as they are now, or as they were if they are gone."""
    for path, size, mtime_ns, *_ in files.underway():
        if path not in again:
            yield differing.get(path) or FileState(path, size, mtime_ns)


def _in_order(present: FileStates, new: FileStates, anew: Collection[str]) -> FileStates:
    """Return the new files and those of the paths `anew`, in the order of the listing."""
    wanted = {*anew, *(path for path, _, _ in new.cells())}
    return FileStates.pack(state for state in present.cells() if state[0] in wanted)


def _moved(gone: Sequence[FileState], new: FileStates) -> tuple[tuple[str, str], ...]:
    """Return the paths before and now of new files with the size and time of files that are gone."""
    before = {state[1:]: state.path for state in gone}
    return tuple((before[state[1:]], state[0]) for state in new.cells() if state[1:] in before) if before else ()


class Differing(Struct, frozen=True, kw_only=True):
    """The differences between the files that exist and those that are known.

    `new` are not known. `known` are, in their order, those that have changed, are gone, or have repairs or reruns;
    `now` is their state by path, None if they are gone.
    """

    new: FileStates
    known: tuple[KnownFile, ...]
    now: Mapping[str, FileState | None]


def compare(present: FileStates, known: KnownFiles, *, gone_again: bool) -> Differing:
    """Compare files with known ones, both in any order; if the orders agree, only differing files become objects.

    Files that are known to be gone are among the differing ones only if `gone_again` asks for them.
    """
    now: dict[str, FileState | None] = {}
    early, late, beside = CompactListWriter(FileStates), CompactListWriter(KnownFiles), known.beside
    present_cells, known_cells = (present.cells(), known.cells()) if beside else _from_first_difference(present, known)
    here = next_of(present_cells)
    state = here()
    for cells in known_cells:
        while state is not None and state[0] < cells[0]:
            early.add(state)
            state = here()
        if state is None or state[0] != cells[0]:
            late.add(cells)
            continue
        if state != cells[:3] or cells[0] in beside:
            now[cells[0]] = FileState._make(state)
        state = here()
    while state is not None:
        early.add(state)
        state = here()
    new, left = early.packed(), late.packed()
    both = set()
    for found, cells in joined(new, left):
        if found is not None:
            both.add(cells[0])
            if found != cells[:3] or cells[0] in beside:
                now[cells[0]] = FileState._make(found)
        elif gone_again or cells[3] != GONE or cells[0] in beside:
            now[cells[0]] = None
    return Differing(
        new=FileStates.pack(cells for cells in new.cells() if cells[0] not in both) if both else new,
        known=tuple(known.make(cells) for cells in known.cells() if cells[0] in now) if now else (),
        now=now,
    )


def _from_first_difference(
    present: FileStates, known: KnownFiles
) -> tuple[Iterator[tuple[Any, ...]], Iterator[tuple[Any, ...]]]:
    """Return the cells of both lists from the block on in which they are not alike, or in which one ends."""
    blocks = zip(present.by_column(), known.by_column(), strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1][:3], blocks))
    return present.cells(same), known.cells(same)


def _is_another(one: KnownFile, now: FileState) -> bool:
    """Return whether a file came back with content from which none of its rows were run."""
    return one.gone and not one.is_known(now) and now != one.rerun


def _is_as_known(one: KnownFile, now: FileState | None) -> bool:
    return now is not None and one.is_known(now)


def holds_what_it_held(one: KnownFile, now: FileState | None, holds_the_same: HoldsTheSame) -> bool:
    """Return whether a file is there, and holds what it held when its rows were run, or its failed ones again."""
    if now is None:
        return False
    return one.is_known(now) or any(holds_the_same(before, now) for before in (one.state, *one.repaired))


def rows_before(read: Sequence[FileState], known: Sequence[KnownFile], first_row: int) -> int:
    """Return how many rows of the first file to read were run already: the run was ended because others changed."""
    for path, _, _, _, begin, _ in KnownFiles.of(known).underway() if read else ():
        if begin >= 0 and path == read[0].path:
            return int(max(0, first_row - begin))
    return 0


def _ticks() -> int:
    """Return nanoseconds of a clock that nobody sets; where there is one that goes on in suspend, as this one does."""
    steady = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic_ns() if steady is None else time.clock_gettime_ns(steady)


class Settling(Struct, frozen=True):
    """Tells files that are settled from those that something may still write.

    `folder` is where it remembers the clock, and files with a time in the future; None: nowhere, and these stay
    unsettled.
    """

    seconds: float
    folder: Path | None = None

    def settled(self, files: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
        """Return the settled files, and the others; a file that is gone by now is in neither."""
        if not self.seconds:
            return files, ()
        before = self._remembered()
        others, future = {**before}, dict[str, list[int]]()
        found = {True: CompactListWriter(Names), False: CompactListWriter(Names)}
        now = time.time_ns()
        was_set = self._was_set(now, _ticks())
        for path in files:
            others.pop(path, None)
            try:
                is_settled = is_url(path) or (self._is_settled(path, now, before, future) and not was_set)
                found[is_settled].add((path,))
            except FileNotFoundError:
                if os.path.lexists(path):
                    raise
        if others | future != before:  # the others are of inputs of other jobs
            self._remember({path: state for path, state in others.items() if os.path.lexists(path)} | future)
        return found[True].packed(), found[False].packed()

    def _is_settled(self, path: str, now: int, before: Mapping[str, list[int]], future: dict[str, list[int]]) -> bool:
        """Return whether a file is settled, and note its state if it has a time in the future. Raises OSError."""
        stat = os.stat(path)  # noqa: PTH116  many
        latest = max(stat.st_mtime_ns, stat.st_ctime_ns)
        if latest <= now:
            return now - latest >= self.seconds * 1e9
        future[path] = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
        return before.get(path) == future[path]

    def _was_set(self, now: int, ticks: int) -> bool:
        """Return whether the clock was set less than `seconds` ago, as looks at this clock and at another one tell.

        The other one counts `ticks` from when the machine was started, and nobody sets it. Both are in nanoseconds.
        """
        if self.folder is None:
            return False
        boot, before, set_at = self._clock()
        started, is_same_boot = now - ticks, boot == boot_id()
        if not is_same_boot or abs(started - before) > max(self.seconds * 5e8, _LEAST_JUMP):
            set_at = ticks if is_same_boot else None
            memo.put(self.folder, CLOCK, "", [boot_id(), started, set_at])
        return set_at is not None and ticks - set_at < self.seconds * 1e9

    def _clock(self) -> tuple[str | None, int, int | None]:
        with suppress(ValidationError):
            return convert(memo.get(self.folder or "", CLOCK, ""), tuple[str, int, int | None])
        return None, 0, None

    def _remembered(self) -> dict[str, list[int]]:
        with suppress(ValueError, TypeError, AttributeError):
            if self.folder is not None:
                return {path: list(state) for path, state in memo.get(self.folder, KIND, "").items()}
        return {}

    def _remember(self, states: Mapping[str, list[int]]) -> None:
        """Keep the states that were seen, by path; if they cannot be written, such files stay unsettled.

        The folder is made if no job has run yet: on a new device whose clock is behind, all files are from the future.
        """
        if self.folder is not None:
            with suppress(OSError):
                make_folders(self.folder)
            memo.put(self.folder, KIND, "", dict(states))
