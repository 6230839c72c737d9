"""What the ledger knows, as nouns: outputs, their parts, and parts that are being made or replaced."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import FileState
from ortdeploy.files.names import relative

Span = tuple[int, int]
"""Consecutive rows of a job: the number of the first row, and how many rows."""

UNREADABLE = "unreadable-file"
"""The code of a file of many rows that could not be read; it counts as one failed row without a number in the file."""

PART_DIGITS = 8
"""Width of the number in the names of parts, for new outputs."""


def part_name(number: int, digits: int, suffix: str, revision: int = 0) -> str:
    """Return the name of a part's file, or with a revision, of a later file with rows of the part."""
    return f"part-{number:0{digits}d}{f'.r{revision}' if revision else ''}{suffix}"


def merged_name(file: str) -> str:
    """Return the name under which a file of a retry of ledger version 7 waits until it takes a part's place."""
    return f".{file}.merged"


def replaced_name(file: str) -> str:
    """Return the name under which a rewritten file of a part waits until it takes its place."""
    return f".{file}.replaced"


def begun_name(file: str, rows: int) -> str:
    """Return the name of the file that holds the first `rows` finished rows of a part."""
    return f".{file}.{rows}.begun"


def output_key(folder: Path, state_dir: Path) -> str:
    """Return an output folder's path from the state directory, with forward slashes. Raises OrtdeployError."""
    key = relative(folder.absolute(), state_dir.absolute())
    try:
        key.encode()
    except UnicodeEncodeError as error:
        raise OrtdeployError(
            f"the ledger notes only outputs whose path is UTF-8, and {folder} is not. Rename it"
        ) from error
    return key


def output_file(state_dir: Path, folder: str, output: str, suffix: str) -> Path:
    """Return the path of an output's own file in a folder of the state directory; its name is a digest."""
    return state_dir / folder / f"{hashlib.sha256(os.fsencode(output)).hexdigest()[:16]}{suffix}"


class Revision(Struct, frozen=True, kw_only=True):
    """A file that was written later than its part; its rows replace those of equal number."""

    revision: int
    file: str
    bytes: int
    rows: tuple[int, ...]
    sha256: str | None = None
    mtime_ns: int | None = None
    deployment: str | None = None


class Part(Struct, frozen=True, kw_only=True):
    """A committed range of a job's rows; `file` is None if none of them gave a result when the part was written.

    `skipped_rows` are the numbers of rows that are neither in a file nor failed. `provenance` is the digest of the
    part's origin, `deployment` that of the deployment that made it. `revisions` are files with rows that were written
    later, `revision` is the last number given to one. Rows of `withdrawn` spans no longer count: their input file has
    changed and now has another number of rows, which have new numbers in the job.
    """

    number: int
    start: int
    rows: int
    committed: int
    failed: int
    skipped: int
    file: str | None
    bytes: int
    skipped_rows: tuple[int, ...] = ()
    provenance: str | None = None
    sha256: str | None = None
    mtime_ns: int | None = None
    deployment: str | None = None
    revision: int = 0
    revisions: tuple[Revision, ...] = ()
    withdrawn: tuple[Span, ...] = ()

    @property
    def end(self) -> int:
        """The row before which it ends."""
        return self.start + self.rows

    @property
    def withdrawn_rows(self) -> int:
        """How many of its rows no longer count."""
        return sum(rows for _, rows in self.withdrawn)

    @property
    def files(self) -> tuple["Part | Revision", ...]:
        """The records of its files: the part itself, if it has a file, and its revisions."""
        return (*(() if self.file is None else (self,)), *self.revisions)


class Forgotten(Struct, frozen=True, kw_only=True):
    """Counts of the first parts of an output, which the ledger has forgotten: all are done and carried away."""

    parts: int = 0
    rows: int = 0
    committed: int = 0
    failed: int = 0
    skipped: int = 0
    withdrawn: int = 0


class NewFile(Struct, frozen=True, kw_only=True):
    """A file that waits under a temporary name until it takes its place."""

    temporary: str
    file: str
    bytes: int
    sha256: str | None = None
    mtime_ns: int | None = None


class Rewrite(Struct, frozen=True, kw_only=True):
    """A part that is rewritten: `files` take their places, those `removed` are deleted, then the part is `part`.

    Of the rows of `spans`, those of `letters` (JSON) have failed, and the others have not. `through`: rows of changed
    files have run again up to this row. Parts that are `absorbed`, which come right before, become one with it.
    `may_be_gone`: a missing file, waiting or renamed, may have been carried away.
    """

    part: Part
    files: tuple[NewFile, ...]
    removed: tuple[str, ...]
    spans: tuple[Span, ...]
    letters: tuple[str, ...] = ()
    through: int | None = None
    absorbed: tuple[int, ...] = ()
    may_be_gone: bool = False


class ChangedFiles(Struct, frozen=True, kw_only=True):
    """What becomes of changed files: rows of those to run `again` keep their numbers, those `anew` count as new files.

    With a `first_row`, files of an unfinished run are among them. Then that run ends: those that are `through` are
    done, and the next rows begin with that number.
    """

    again: tuple[FileState, ...]
    anew: tuple[FileState, ...]
    through: tuple[str, ...] = ()
    first_row: int | None = None


class Rerun(Struct, frozen=True, kw_only=True):
    """An input file whose rows run again with its new content; parts hold the new results before the row `through`."""

    state: FileState
    first_row: int
    rows: int
    through: int

    @property
    def end(self) -> int:
        """The row before which the file ends."""
        return self.first_row + self.rows


class Begun(Struct, frozen=True, kw_only=True):
    """The finished rows of a part in which a run ended early; the next run continues after them.

    `part` describes them; its file, if any row gave a result, has a hidden name. `state` is what the last row passes
    on, for a pipeline with state. With a `name` the part is whole, and its file is to be renamed to it.
    """

    part: Part
    state: str | None = None
    name: str | None = None

    @property
    def end(self) -> int:
        """The row with which the next run continues."""
        return self.part.start + self.part.rows


class OutputRecord(Struct, frozen=True, kw_only=True):
    """What the ledger knows of one output folder. `status` is one of STATUSES.

    The first `first_row` rows came from input files of finished runs. `batch_size` is what `auto` found. `part_digits`
    is the width of the number in the names of parts. `begun` has the finished rows of the next part, and `revision`
    goes into its name. `noted_failures` counts all rows of `_failed.jsonl`, also those of an abandoned part that runs
    again. `rewrites` were begun but not ended. `reruns` are changed files whose rows run again; rows of `leaving`
    spans are to leave their parts. `forgotten` counts the first parts if they are no longer among `parts`.
    """

    output: str
    deployment: str
    job: str
    identity: Mapping[str, str]
    status: str
    run: str
    started: str
    ended: str | None
    reason: str | None
    first_row: int
    batch_size: int | None
    statistics: Mapping[str, Any]
    part_digits: int
    parts: tuple[Part, ...]
    begun: Begun | None = None
    noted_failures: int = 0
    revision: int = 0
    rewrites: tuple[Rewrite, ...] = ()
    reruns: tuple[Rerun, ...] = ()
    leaving: tuple[Span, ...] = ()
    forgotten: Forgotten = Forgotten()

    @property
    def rows(self) -> int:
        """Rows of the input that committed parts cover."""
        return self.forgotten.rows + sum(part.rows for part in self.parts)

    @property
    def is_bare(self) -> bool:
        """Whether no row is committed or kept, nor may have been carried away before it was committed."""
        return not self.rows and self.begun is None and not self.revision

    @property
    def committed(self) -> int:
        """Rows of the input that gave a result."""
        return self.forgotten.committed + sum(part.committed for part in self.parts)

    @property
    def skipped(self) -> int:
        """Rows of the input that were skipped."""
        return self.forgotten.skipped + sum(part.skipped for part in self.parts)

    @property
    def withdrawn(self) -> int:
        """Rows that no longer count."""
        return self.forgotten.withdrawn + sum(part.withdrawn_rows for part in self.parts)

    @property
    def failed_in_parts(self) -> int:
        """Rows of the input that failed, of committed parts."""
        return self.forgotten.failed + sum(part.failed for part in self.parts)

    @property
    def all_failed(self) -> int:
        """Rows that failed, also those that are forgotten, or that no committed part has."""
        return max(self.failed_in_parts, self.forgotten.failed + self.noted_failures)

    @property
    def next_part(self) -> int:
        """The number of the next part; the last part is never forgotten, so it is known."""
        return self.parts[-1].number + 1 if self.parts else 0

    @property
    def failed(self) -> int:
        """Rows that failed, of committed parts and of the one that was begun."""
        return sum(part.failed for part in self._all_parts)

    @property
    def failed_outside(self) -> int:
        """Failed rows that are in no committed part, as of a run that they ended: the next one begins with them."""
        return max(0, self.noted_failures - sum(part.failed for part in self.parts))

    @property
    def origins(self) -> set[str]:
        """The digests of the origins of committed parts, and of the one that was begun."""
        return {part.provenance for part in self._all_parts if part.provenance}

    @property
    def makers(self) -> tuple[str, ...]:
        """The digests of the deployments that made committed parts, in the order of the parts."""
        made = [part.deployment for part in self._all_parts]
        made += [one.deployment for part in self.parts for one in part.revisions]
        return tuple(dict.fromkeys(one for one in made if one is not None))

    @property
    def _all_parts(self) -> tuple[Part, ...]:
        return self.parts if self.begun is None else (*self.parts, self.begun.part)


def failed_part(record: OutputRecord, rows: int, deployment: str) -> Part:
    """Return the next part of an output, which has no file, because all its rows have failed."""
    return Part(
        number=record.next_part,
        start=record.rows,
        rows=rows,
        committed=0,
        failed=rows,
        skipped=0,
        file=None,
        bytes=0,
        deployment=deployment,
    )


class FailedBefore(Struct, frozen=True, kw_only=True):
    """How often a failed row was tried, its file, its number in the file, and the digest of the file's content.

    `source` is the file with the row's place in it, as messages have it, and `message` why the row failed.
    `run` is the run in which it failed last, or which took it over from another machine. `unreadable`: it stands for a
    file that could not be read.
    """

    attempts: int
    path: str = ""
    file_row: int | None = None
    sha256: str | None = None
    run: str = ""
    unreadable: bool = False
    source: str = ""
    message: str = ""


class Repair(Struct, frozen=True, kw_only=True):
    """An input file as it was when its failed rows were run again, with the digests of its content then and before."""

    state: FileState
    sha256: str | None
    before: str | None


STATUSES = ("running", "done", "failed", "interrupted", "paused")
