"""Takes over rows that failed on another machine (its `_failed.jsonl`), so that a retry runs them here.

A row is identified by its file, its number in the file, and the digest of the file's content. Rows that this machine
has committed do not run again. Rows of a file that no run has read here become failed rows of this job, in a part
without a file, in one transaction. From then on they are like any other failed row, and no apply reads their file.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path

from msgspec import Struct, field

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.events import log
from ortdeploy.facts.data import FileState, KnownFile
from ortdeploy.files.atomic import make_durable_folder
from ortdeploy.files.digests import shortened
from ortdeploy.files.gate import require_inside
from ortdeploy.files.urls import is_url
from ortdeploy.jobs.failed_row_details import InputDigests
from ortdeploy.jobs.job_context import JobContext
from ortdeploy.ledger.records import OutputRecord, failed_part
from ortdeploy.parts.output_owner import write_marker
from ortdeploy.plan.steps import DeadLetter
from ortdeploy.results.results import Status
from ortdeploy.results.rows import FailedRow
from ortdeploy.sources.files import file_states, full_path


class _Sorted(Struct):
    """Dead letters, sorted: rows that failed here too, by number, and letters of files that are new here."""

    failed_here: set[int] = field(default_factory=set)
    new: list[tuple[DeadLetter, FileState]] = field(default_factory=list)


class Letters:
    """The failed rows of another machine, for one job of this one."""

    def __init__(self, context: JobContext) -> None:
        """Take the job; nothing is touched yet."""
        self._context = context
        self._digests = InputDigests(context)

    def take_over(self) -> frozenset[int]:
        """Add rows of new files to the ledger, and return the numbers of all rows to retry here.

        Rows that are left out are logged by file. Raises OrtdeployError, OSError.
        """
        context = self._context
        failed = self._failed()
        known = {one.state.path: one for one in context.output.ledger.inputs(context.output.name)}
        sorted_ = _Sorted()
        letters: dict[str, list[DeadLetter]] = {}
        for letter in sorted(context.step.letters or (), key=lambda one: one.file_row):
            of_file = letters.setdefault(letter.path, [])
            of_file += [letter] if not of_file or of_file[-1].file_row != letter.file_row else []
        for path, of_file in letters.items():
            self._sort(path, of_file, failed, known.get(path), sorted_)
        if sorted_.new:
            sorted_.failed_here.update(self._adopt(sorted_.new))
        return frozenset(sorted_.failed_here)

    def _failed(self) -> dict[tuple[str, int], int]:
        """Return the numbers of the rows that failed here, by file and row in the file."""
        found: dict[tuple[str, int], int] = {}
        ledger, output = self._context.output.ledger, self._context.output.name
        for rows in ledger.failed_rows(output).values():
            found.update({(one.path, one.file_row): row for row, one in rows.items() if one.file_row is not None})
        return found

    def _sort(
        self,
        path: str,
        letters: Sequence[DeadLetter],
        failed: Mapping[tuple[str, int], int],
        known: KnownFile | None,
        found: _Sorted,
    ) -> None:
        state = self._state(path)
        if isinstance(state, str):
            _leave(letters, state)
            return
        digest = self._digests.of(state)
        same = [one for one in letters if one.sha256 is None or digest is None or one.sha256 == digest]
        _leave([one for one in letters if one not in same], "the file holds something else here than where it failed")
        rows = {failed[one.path, one.file_row] for one in same if (one.path, one.file_row) in failed}
        found.failed_here |= rows
        others = [one for one in same if (one.path, one.file_row) not in failed]
        if known is None and self._context.step.input.upstream is None:
            found.new += [(one, state) for one in others]
        elif known is not None and known.done:
            _leave(others, "it is committed here already")
        else:
            _leave(others, "apply has not read the file here; its rows run with it")

    def _state(self, path: str) -> FileState | str:
        """Return the state of a file on this machine, or why there is none."""
        if is_url(path):
            return "files of object stores are read by apply alone"
        folder = self._context.plan.folder
        full = full_path(folder, path)
        try:
            require_inside([full], (folder, *self._context.plan.roots))
            if not Path(full).is_file():
                return "the file is not here"
            state: FileState = file_states([full], folder)[0]
        except OrtdeployError as error:
            return str(error)
        return state

    def _adopt(self, letters: Sequence[tuple[DeadLetter, FileState]]) -> range:
        """Add rows of files that are new here to the ledger as failed rows; return their numbers."""
        context = self._context
        record = context.output.record()
        if record is not None and _is_underway(record, context.output.ledger.inputs(context.output.name)):
            raise OrtdeployError(
                f"apply is not through with the files of {context.step.output.shown}; rows of other files come after "
                "them. Apply first"
            )
        if record is None and context.output.upload is not None:
            raise OrtdeployError(f"no run has written to {context.step.output.shown}; apply first")
        if record is None:
            record = self._begin()
        start = record.rows
        rows = range(start, start + len(letters))
        part = failed_part(record, len(letters), context.made_by.digest)
        digests = {state: self._digests.of(state) for _, state in letters}
        failures = [
            _failed_row(one, number, digests[state], context.run_id)
            for number, (one, state) in zip(count(start), letters, strict=False)
        ]
        files = tuple(digests)
        contents = ((state, shortened(sha256)) for state, sha256 in digests.items() if sha256 is not None)
        context.output.ledger.note_contents(context.output.name, contents)
        context.output.ledger.adopt(context.output.name, part, failures, files, context.made_by)
        log.info("row.taken", rows=len(letters), files=[state.path for state in files])
        return rows

    def _begin(self) -> OutputRecord:
        """Begin an output into which no run has written, and end it at once: it has no rows of its own yet."""
        context = self._context
        make_durable_folder(context.output.folder)
        ledger, output = context.output.ledger, context.output.name
        ledger.begin(output, made_by=context.made_by, job=context.step.job, run=context.run_id)
        write_marker(context.output.folder, ledger.state_dir, context.plan.deployment, context.step.job)
        ledger.end(output, Status.DONE, None)
        record = ledger.output(output)
        if record is None:
            raise AssertionError("the output was noted")
        return record


def _is_underway(record: OutputRecord, inputs: Iterable[KnownFile]) -> bool:
    return record.begun is not None or not all(one.done for one in inputs)


def _failed_row(letter: DeadLetter, row: int, digest: str | None, run: str) -> FailedRow:
    """Return a row that failed elsewhere as a failed row of this job that was not tried yet."""
    return FailedRow(
        row=row,
        source=letter.source,
        stage=letter.stage,
        code=letter.code,
        message=letter.message,
        key=letter.key,
        attempts=0,
        path=letter.path,
        file_row=letter.file_row,
        sha256=digest,
        run=run,
    )


def _leave(letters: Sequence[DeadLetter], reason: str) -> None:
    """Log that rows of a file are not run here."""
    if letters:
        rows = sorted(one.file_row for one in letters)
        log.warning("row.not_taken", source=letters[0].path, rows=rows[:8], count=len(rows), reason=reason)
