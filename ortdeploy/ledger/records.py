"""What the ledger knows, as nouns: outputs, their parts, and what is on its way to becoming one."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortdeploy.facts.data import FileState
from ortdeploy.records import record

Span = tuple[int, int]
"""The number of a first row in the job, and how many rows there are from it on."""

PART_DIGITS = 8
"""Width of the number in the names of parts, of outputs that are begun from now on."""


def part_name(number: int, digits: int, suffix: str, revision: int = 0) -> str:
    """Return the name of a part's file, or of one that holds rows of a part and was written later."""
    return f"part-{number:0{digits}d}{f'.r{revision}' if revision else ''}{suffix}"


def output_key(folder: Path, state_dir: Path) -> str:
    """Return an output folder's way from the state directory, with forward slashes."""
    return os.path.relpath(folder.absolute(), state_dir.absolute()).replace(os.sep, "/")


def output_file(state_dir: Path, folder: str, output: str, suffix: str) -> Path:
    """Return a file of one output's own in a folder of the state directory, whatever characters its name has."""
    return state_dir / folder / f"{hashlib.sha256(output.encode()).hexdigest()[:16]}{suffix}"


@record
class Revision:
    """A file with rows of a part that was written after it; its rows replace those of equal number."""

    revision: int
    file: str
    bytes: int
    rows: tuple[int, ...]
    sha256: str | None = None
    mtime_ns: int | None = None
    deployment: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A committed range of a job's rows; `file` is None when none of them gave a result when it was written.

    `skipped_rows` are the numbers of those that are neither in a file nor failed; `provenance` is the digest of what
    the part was made from, `deployment` that of what made it. `revisions` hold rows that were written later, `revision`
    is the last number that was given to one. Rows of `withdrawn` spans count no more: what their file holds now has
    another number of rows, which have numbers of their own.
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
        """How many of its rows count no more."""
        return sum(rows for _, rows in self.withdrawn)

    @property
    def files(self) -> tuple["Part | Revision", ...]:
        """What says what the files of this part are."""
        return (*(() if self.file is None else (self,)), *self.revisions)


@record
class Merge:
    """A file that takes a part's place, with the rows that it holds and the part did not.

    With a `revision`, it takes no place: it lies beside the part, and holds these rows alone.
    """

    part: int
    temporary: str
    file: str
    bytes: int
    rows: tuple[int, ...]
    sha256: str | None = None
    mtime_ns: int | None = None
    revision: int = 0
    deployment: str | None = None


@record
class Forgotten:
    """How much the first parts of an output were that the ledger has forgotten: all of it is done and carried away."""

    parts: int = 0
    rows: int = 0
    committed: int = 0
    failed: int = 0
    skipped: int = 0
    withdrawn: int = 0


@record
class NewFile:
    """A file that waits under a temporary name until it takes its place."""

    temporary: str
    file: str
    bytes: int
    sha256: str
    mtime_ns: int


@record
class Replacement:
    """A part whose rows were put together anew: `files` take their places, `removed` ones go, then it is `part`.

    The rows of `spans` have failed or not as `letters` say, which are JSON. `through`: files of which rows run again
    are through up to this row. Rows of the parts that are `absorbed`, which come right before, are in it, too. Where
    files may be carried away, those that wait or have their names `may_be_gone`.
    """

    part: Part
    files: tuple[NewFile, ...]
    removed: tuple[str, ...]
    spans: tuple[Span, ...]
    letters: tuple[str, ...] = ()
    through: int | None = None
    absorbed: tuple[int, ...] = ()
    may_be_gone: bool = False


@record
class ChangedFiles:
    """What becomes of changed files: rows of those to run `again` keep their numbers, those `anew` are new files.

    With a `first_row`, files of an unfinished run are among them: then those that are `through` are done with, and
    whatever is run next begins with that row.
    """

    again: tuple[FileState, ...]
    anew: tuple[FileState, ...]
    through: tuple[str, ...] = ()
    first_row: int | None = None


@record
class Rerun:
    """An input file whose rows run again from what it holds now: up to the row `through`, parts hold their results."""

    state: FileState
    first_row: int
    rows: int
    through: int

    @property
    def end(self) -> int:
        """The row before which the file ends."""
        return self.first_row + self.rows


@record
class Begun:
    """The rows that are through of a part at which a run ended early; the next run goes on behind them.

    `part` is what was through, in a file with a hidden name, if any row gave a result. `state` is what the last row
    hands on, of a pipeline that has some. With a `name` the part is whole, and its file is to be called so.
    """

    part: Part
    state: str | None = None
    name: str | None = None

    @property
    def end(self) -> int:
        """The row with which the next run goes on."""
        return self.part.start + self.part.rows


@record
class OutputRecord:
    """What the ledger knows of one output folder. `status` is one of STATUSES.

    `first_row` rows came from input files of runs that are finished. `batch_size` is what `auto` has found.
    `part_digits` is the width of the number in the names of parts. `begun` is what is through of the next part, and
    `revision` goes into its name. `noted_failures` are all rows that stand in `_failed.jsonl`, also of a part that was
    given up and runs again. `replacements` were begun and not ended. `reruns` are changed files whose rows run again;
    rows of `leaving` spans are to leave their parts. The first parts may be `forgotten`.
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
    replacements: tuple[Replacement, ...] = ()
    reruns: tuple[Rerun, ...] = ()
    leaving: tuple[Span, ...] = ()
    forgotten: Forgotten = Forgotten()

    @property
    def rows(self) -> int:
        """Rows of the input that committed parts cover."""
        return self.forgotten.rows + sum(part.rows for part in self.parts)

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
        """Rows that count no more."""
        return self.forgotten.withdrawn + sum(part.withdrawn_rows for part in self.parts)

    @property
    def failed_in_parts(self) -> int:
        """Rows of the input that failed, of committed parts."""
        return self.forgotten.failed + sum(part.failed for part in self.parts)

    @property
    def next_part(self) -> int:
        """The number of the part that is committed next; the last part is never forgotten."""
        return self.parts[-1].number + 1 if self.parts else 0

    @property
    def failed(self) -> int:
        """Rows that failed, of committed parts and of the one that was begun."""
        return sum(part.failed for part in self._all_parts)

    @property
    def origins(self) -> set[str]:
        """The digests of what committed parts and the one that was begun were made from."""
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


@record
class FailedBefore:
    """How often a failed row was tried, and where it is: in which file, as which row of it, and of which content."""

    attempts: int
    path: str = ""
    file_row: int | None = None
    sha256: str | None = None


@record
class Repair:
    """An input file as it was when its failed rows were run again, with the digests of its content then and before."""

    state: FileState
    sha256: str | None
    before: str | None


STATUSES = ("running", "done", "failed", "interrupted", "paused")
