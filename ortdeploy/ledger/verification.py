"""Reads every byte of committed parts again, and compares it with the digests that the ledger noted at the writing.

Remembered digests and times of files are not trusted: a failing disk changes neither.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.ledger.check import find_contradiction
from ortdeploy.ledger.damage import damaged
from ortdeploy.ledger.integrity import GONE_FILE, Underway, difference
from ortdeploy.ledger.opening import read_ledger
from ortdeploy.ledger.records import NewFile, Part, Revision
from ortdeploy.ledger.stored_parts import Copies, difference_there


class PartState(StrEnum):
    """The verdict on a part. One without a SHA-256 in the ledger is `unverifiable` if its size is right.

    A missing one of a removable output is `carried-away`.
    """

    AS_WRITTEN = "as-written"
    CARRIED_AWAY = "carried-away"
    UNVERIFIABLE = "unverifiable"
    DAMAGED = "damaged"


class VerifiedPart(Struct, frozen=True, kw_only=True):
    """A file of a committed part, with the size in bytes that the ledger notes; `damage` says how it differs.

    `is_copy`: a local copy was read, and of the object on the store only size and ETag, if that says enough.
    """

    file: str
    bytes: int
    state: PartState
    damage: str | None = None
    is_copy: bool = False


class VerifiedJob(Struct, frozen=True, kw_only=True):
    """A job and its parts; no parts if nothing is committed. Behind them, files of rows that are gone, in a folder."""

    job: str
    output: str
    parts: tuple[VerifiedPart, ...]

    @property
    def count(self) -> int:
        """How many parts there are."""
        return sum("/" not in one.file for one in self.parts)

    @property
    def sound(self) -> tuple[VerifiedPart, ...]:
        """Parts with the bytes that were written."""
        return self._of(PartState.AS_WRITTEN)

    @property
    def unverifiable(self) -> tuple[VerifiedPart, ...]:
        """Parts of which only the size could be compared."""
        return self._of(PartState.UNVERIFIABLE)

    @property
    def carried_away(self) -> tuple[VerifiedPart, ...]:
        """Parts of a removable output that are gone."""
        return self._of(PartState.CARRIED_AWAY)

    @property
    def damaged(self) -> tuple[VerifiedPart, ...]:
        """Parts that are gone, cannot be read, or hold something else."""
        return self._of(PartState.DAMAGED)

    def _of(self, state: PartState) -> tuple[VerifiedPart, ...]:
        return tuple(part for part in self.parts if part.state is state)


_Written = Part | Revision | NewFile
_Records = Mapping[str, Sequence[_Written]]
"""By the name of a file, what it may be: the part or revision, or what is about to be put into its place."""


def verify_parts(
    state_dir: Path,
    output: str,
    owner: tuple[str, str],
    folder: Path,
    *,
    url: str | None = None,
    removable: bool = False,
) -> Iterator[VerifiedPart]:
    """Read the parts of an output again; `owner` is the deployment and job that must own it. Raises OrtdeployError.

    If the output is uploaded to a `url`, those in the folder are copies, which are compared with a listing of the
    store; the others are read there.
    """
    records_by_file = _records(state_dir, output, owner)
    copies = Copies(url) if url is not None and records_by_file else None
    for file, records in records_by_file.items():
        found = _read(state_dir, output, owner, folder / file, records, copies)
        if found is not None and removable and found.damage == GONE_FILE:
            found = replace(found, state=PartState.CARRIED_AWAY, damage=None)
        if found is not None:
            yield found


def columns_of_files(state_dir: Path, output: str) -> set[str]:
    """Return the columns that committed rows have as files of their own, whatever the manifest says by now.

    Raises OrtdeployError.
    """
    with read_ledger(state_dir) as ledger:
        record = ledger.output(output) if ledger else None
        made_by = ledger.made_by(record.parts[-1].deployment) if ledger and record and record.parts else None
    columns = made_by.layout["columns"] if made_by and made_by.layout else {}
    return {name for name, told in columns.items() if told == [None, None]}


def rows_with_results(state_dir: Path, output: str, owner: tuple[str, str]) -> tuple[int, ...]:
    """Return the rows of an output that gave a result, without parts that are being written again.

    `owner` is as in `verify_parts`. Raises OrtdeployError.
    """
    with read_ledger(state_dir) as ledger:
        record = ledger.output(output) if ledger else None
        if ledger is None or record is None or (record.deployment, record.job) != owner:
            return ()
        failed = ledger.failed_rows(output)
    underway = {number for one in record.rewrites for number in (*one.absorbed, one.part.number)}
    gone = {row for rows in failed.values() for row in rows}
    for part in record.parts:
        gone.update(part.skipped_rows, *(range(first, first + rows) for first, rows in part.withdrawn))
    whole = (range(part.start, part.end) for part in record.parts if part.number not in underway)
    return tuple(row for rows in whole for row in rows if row not in gone)


def _read(
    state_dir: Path,
    output: str,
    owner: tuple[str, str],
    path: Path,
    records: Sequence[_Written],
    copies: Copies | None,
) -> VerifiedPart | None:
    """Read a part again; None if a live run has put its output aside meanwhile."""
    while True:
        damage = difference(path, records, digest=None)
        is_copy = copies is not None and damage != GONE_FILE
        if damage == GONE_FILE and copies is not None:
            damage = difference_there(copies.url, path.name, records)
        elif damage is None and copies is not None:
            damage = copies.difference(path, records)
        if damage is None:
            return replace(_verified(path.name, records, damage), is_copy=is_copy)
        now = _records(state_dir, output, owner).get(path.name)
        if now == records:
            return _verified(path.name, records, damage)
        if now is None:
            return None
        records = now


def _verified(file: str, records: Sequence[_Written], damage: str | None) -> VerifiedPart:
    if damage is not None:
        state = PartState.DAMAGED
    elif any(one.sha256 is None for one in records):
        state = PartState.UNVERIFIABLE
    else:
        state = PartState.AS_WRITTEN
    return VerifiedPart(file=file, bytes=records[0].bytes, state=state, damage=damage)


def _records(state_dir: Path, output: str, owner: tuple[str, str]) -> _Records:
    """Return what the ledger says now of the parts that have a file. Raises OrtdeployError if it is damaged."""
    with read_ledger(state_dir) as ledger:
        record = ledger.output(output) if ledger else None
    if record is None or (record.deployment, record.job) != owner:
        return {}
    contradiction = find_contradiction(record)
    if contradiction is not None:
        raise OrtdeployError(damaged(contradiction))
    underway = Underway(record.rewrites)
    return {
        str(file.file): (file, *underway.instead_of(part, file))
        for part in record.parts
        for file in part.files
        if not underway.may_be_gone(part, file)
    }
