"""The files of a job's committed rows, for another job that reads them.

A committed file is never written again: rows that a retry recovers get a file of their own (`part-N.r1`). So a job has
read a file as a whole or not at all, and its own list of inputs in the ledger says which files it has read.
"""

import posixpath
import re
from collections.abc import Sequence

from msgspec import Struct

from ortdeploy.facts.data import FileState, KnownFile
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.records import OutputRecord, Part, Revision

_NUMBER = re.compile(r"part-([0-9]+)")


class PublishedFile(Struct, frozen=True, kw_only=True):
    """A file of committed rows: the ledger's record of it, and its state, with the path from the manifest."""

    state: FileState
    file: Part | Revision


class Unread(Struct, frozen=True, kw_only=True):
    """The files that a job has not read to the end, in the order of its rows.

    `restarted`: a file that it has read is not what it was, because the job that wrote it has started over.
    """

    files: tuple[PublishedFile, ...]
    restarted: bool


class Reader(Struct, frozen=True, kw_only=True):
    """A job that reads another one's rows: the files that it has finished, and the paths of those with failed rows."""

    job: str
    through: frozenset[FileState] = frozenset()
    failed: frozenset[str] = frozenset()

    def needs(self, one: PublishedFile) -> bool:
        """Return whether it still needs a file: it has not finished it, or a retry may read its failed rows."""
        return one.state not in self.through or one.state.path in self.failed


def reader_of(ledger: Ledger | None, output: str, job: str) -> Reader:
    """Return what a job has read so far; `output` is its output's name in the ledger."""
    if ledger is None or ledger.output(output) is None:
        return Reader(job=job)
    failed = (one.path for rows in ledger.failed_rows(output).values() for one in rows.values())
    through = frozenset(known.state for known in ledger.inputs(output) if known.done)
    return Reader(job=job, through=through, failed=frozenset(failed))


def deliveries(output: OutputRecord | None, folder: str) -> tuple[PublishedFile, ...]:
    """Return the files of an output, in the order of their rows; `folder` is its path from the manifest."""
    parts = output.parts if output is not None else ()
    return tuple(
        PublishedFile(
            state=FileState(path=posixpath.join(folder, str(file.file)), size=file.bytes, mtime_ns=file.mtime_ns or 0),
            file=file,
        )
        for part in parts
        for file in part.files
    )


def unread(delivered: Sequence[PublishedFile], known: Sequence[KnownFile], forgotten: int = 0) -> Unread:
    """Return which of the delivered files a job still has to read; `known` are those that it knows.

    Those of an unfinished run come first, in their order. If parts are `forgotten`, a finished file with a lower number
    than any delivered one may be gone. If any other file is gone, the job that wrote it has started over.
    """
    present = {one.state.path: one for one in delivered}
    names = {one.state.path for one in known}
    begun = [one.state for one in known if not one.done]
    first = min((number_of(one.state.path) for one in delivered), default=0)
    restarted = any(
        present[one.state.path].state != one.state
        if one.state.path in present
        else not (one.done and forgotten and number_of(one.state.path) < first)
        for one in known
    )
    again = (present[state.path] for state in begun if state.path in present)
    new = (one for one in delivered if one.state.path not in names)
    return Unread(files=(*again, *new), restarted=restarted)


def number_of(path: str) -> int:
    """Return the number of the part that a file belongs to, from its name."""
    found = _NUMBER.match(posixpath.basename(path))
    return int(found[1]) if found else 0
