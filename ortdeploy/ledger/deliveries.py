"""The files of a job's committed rows, for another job that reads them.

A file that is committed is never written again: what a retry recovers is a file of its own (`part-N.r1`). So a file has
been read by a job as a whole or not at all, and what it has read of which files is its own list of inputs.
"""

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ortdeploy.facts.data import FileState, KnownFile
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.records import OutputRecord, Part, Revision
from ortdeploy.records import record

_NUMBER = re.compile(r"part-([0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A file of committed rows: what the ledger notes of it, and its state, with the path from the manifest."""

    state: FileState
    file: Part | Revision


@record
class Unread:
    """The files that a job has not read to the end, in the order of its rows.

    `restarted`: of those that it has read, one is not what it was, because the job that wrote it has started over.
    """

    files: tuple[Delivery, ...]
    restarted: bool


@record
class Reader:
    """A job that reads another one's rows: the files that it has taken up, and those of which rows failed there."""

    job: str
    known: Sequence[KnownFile] = ()
    failed: frozenset[str] = frozenset()

    def needs(self, one: Delivery) -> bool:
        """Return whether it still reads a file: it is not through with it, or a retry may want its failed rows."""
        is_read = any(known.done and known.state == one.state for known in self.known)
        return not is_read or one.state.path in self.failed


def reader_of(ledger: Ledger | None, output: str, job: str) -> Reader:
    """Return what a job has read, whose output the ledger knows under this name, if it knows it."""
    if ledger is None or ledger.output(output) is None:
        return Reader(job=job)
    failed = (one.path for rows in ledger.failed_rows(output).values() for one in rows.values())
    return Reader(job=job, known=ledger.inputs(output), failed=frozenset(failed))


def deliveries(output: OutputRecord | None, folder: str) -> tuple[Delivery, ...]:
    """Return the files of an output, in the order of their rows; `folder` is its path from the manifest."""
    parts = output.parts if output is not None else ()
    return tuple(
        Delivery(
            state=FileState(path=posixpath.join(folder, str(file.file)), size=file.bytes, mtime_ns=file.mtime_ns or 0),
            file=file,
        )
        for part in parts
        for file in part.files
    )


def unread(delivered: Sequence[Delivery], known: Sequence[KnownFile], forgotten: int = 0) -> Unread:
    """Return what of the delivered files a job still has to read; `known` are those that it has taken up.

    Those of an unfinished run come first, in their order. Files of the first parts may be `forgotten`, as many as have
    a lower number than the first that is known; any other that is gone was written anew.
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
