"""Finds failed rows again: each in the file that it came from, as that file is now.

A row is identified by its file and its number in the file, so other files may come, change and go. A file that was
repaired is read as it is now. If its content counts as a new file, which `apply` runs, its old rows stay failed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.events import log
from ortdeploy.facts.data import FileState, InputFacts
from ortdeploy.feeds.row_sources import open_rows
from ortdeploy.jobs.failed_row_details import InputDigests
from ortdeploy.jobs.job_context import JobContext
from ortdeploy.ledger.records import FailedBefore, Repair
from ortdeploy.plan.steps import RunJob
from ortdeploy.results.rows import Block
from ortdeploy.sources.catalogue import FILE_IS_ROW, at_hand, look_at
from ortdeploy.sources.files import file_states, full_path
from ortdeploy.sources.protocol import Source

_REPLACED = "the file holds something else now, which counts as a new file"


class Segment(Struct, frozen=True, kw_only=True):
    """Rows that are read together: the first row of their files has the number `first_row` in the job."""

    states: Sequence[FileState]
    first_row: int
    rows: tuple[int, ...]


class Found(Struct):
    """Where failed rows are now: `segments` in the order of their rows, with the files among them that changed."""

    segments: list[Segment] = field(default_factory=list)
    repairs: dict[FileState, Repair] = field(default_factory=dict)

    @property
    def rows(self) -> tuple[int, ...]:
        """The rows that can be run."""
        return tuple(row for segment in self.segments for row in segment.rows)

    @property
    def states(self) -> tuple[FileState, ...]:
        """The files as they are read."""
        return tuple(dict.fromkeys(state for segment in self.segments for state in segment.states))


class RowLocator:
    """Finds the failed rows of one job."""

    def __init__(self, context: JobContext) -> None:
        self._step = context.step
        self._folder = context.plan.folder
        self._digests = InputDigests(context)
        self._known = {one.state.path: one for one in context.output.ledger.inputs(context.output.name)}
        self._now: dict[str, FileState | str] = {}
        self.left: dict[tuple[str, str], int] = {}

    def leave(self, rows: Sequence[int], path: str, reason: str) -> None:
        """Log that rows do not run again, and stay failed; `left` has how many, by path and reason."""
        leave(rows, path, reason)
        self.left[path, reason] = self.left.get((path, reason), 0) + len(rows)

    def find(self, failed: Mapping[int, FailedBefore]) -> Found:
        """Return where rows are now; those that cannot run again are logged, and stay failed."""
        found = Found()

        def place(row: int) -> tuple[str, int, str | None]:
            before = failed[row]
            return before.path, row - (before.file_row or 0), before.sha256

        for (path, first_row, digest), rows in groupby(sorted(failed), key=place):
            state = self._state(path)
            why_not = state if isinstance(state, str) else self._why_not(state, digest, found)
            if isinstance(state, str) or why_not is not None:
                self.leave(tuple(rows), path, str(why_not))
            else:
                found.segments.append(Segment(states=(state,), first_row=first_row, rows=tuple(rows)))
        return found

    def holds_else(self, row: FailedBefore) -> bool:
        """Return whether the file of a failed row has other content than when the row was tried last."""
        state = self._state(row.path)
        now = None if isinstance(state, str) else self._digests.of(state)
        return None not in {now, row.sha256} and now != row.sha256

    def _state(self, path: str) -> FileState | str:
        """Return the state of a file now, or why it has none."""
        if path not in self._now:
            try:
                full = full_path(self._folder, path)
                (self._now[path],) = file_states([full], self._folder, self._step.input.patterns)
            except OrtdeployError as error:
                self._now[path] = str(error)
        return self._now[path]

    def _why_not(self, state: FileState, digest: str | None, found: Found) -> str | None:
        """Return why rows of a file do not run from its content of now; None if they do."""
        known, now = self._known.get(state.path), self._digests.of(state)
        if known is not None and self._step.input.upstream is not None and digest is not None and now == digest:
            return None  # a copy of a part has another time
        if known is not None and known.is_known(state):
            is_replaced = digest is not None and now is not None and digest != now and state not in known.repaired
            return _REPLACED if is_replaced else None
        is_whole = known is not None and not known.gone and known.span is not None  # not rows of another machine alone
        if is_whole and self._step.input.on_change == "rerun":
            return "the file has changed, and apply runs all of its rows again"
        if known is None or known.gone or self._step.input.on_change == "append":
            return _REPLACED
        if not known.done and self._step.input.format not in FILE_IS_ROW:
            return "the file has changed, and apply is not through with it"
        why_not = self._unfit(state)
        if why_not is None:
            found.repairs[state] = Repair(state=state, sha256=now, before=digest)
        return why_not

    def _unfit(self, state: FileState) -> str | None:
        """Return why a repaired file cannot be read like the one before; None if it can."""
        step = self._step
        facts = InputFacts(
            format=step.input.format,
            row_type=step.input.row_type,
            dialect=step.input.dialect,
            settings=step.input.settings,
            memory_limit=step.limits.memory,
        )
        with at_hand(step.input.format, [full_path(self._folder, state.path)], step.input.patterns) as there:
            seen = look_at(step.input.format, there, facts)
        if seen.problem is not None:
            return seen.problem.detail
        wanted = {name for planned in step.inputs for name in planned.columns} | {*step.input.key}
        missing = sorted(wanted - {*seen.columns, "path", "row"})
        return f"the file has no column {missing[0]} any more" if missing else None


def leave(rows: Sequence[int], path: str, reason: str) -> None:
    """Log that rows do not run again, and stay failed."""
    log.warning("row.left", first=rows[0], rows=len(rows), source=path, reason=reason)


@contextmanager
def open_segments(step: RunJob, folder: str, segments: Sequence[Segment], state_dir: Path) -> Iterator[Source]:
    """Open the rows of several files, one file after the other."""
    yield _Segments(step, folder, segments, state_dir)


class _Segments(Struct, frozen=True):
    step: RunJob
    folder: str
    segments: Sequence[Segment]
    state_dir: Path

    def blocks(self, _start: int, sizes: Iterable[int]) -> Iterator[Block]:
        """Yield the blocks of each file's rows; rows that it does not have any more are in none."""
        for segment in self.segments:
            source = replace(self.step.input, files=segment.states, first_row=segment.first_row, rows_before=0)
            with open_rows(replace(self.step, input=source), self.folder, segment.rows, self.state_dir) as opened:
                yield from (block for block in opened.blocks(segment.rows[0], sizes) if block.count)
