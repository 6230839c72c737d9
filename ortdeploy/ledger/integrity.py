"""Compares the files of committed parts with what the ledger noted when they were written."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ortdeploy.files.digests import file_digest
from ortdeploy.ledger.records import Begun, NewFile, OutputRecord, Part, Revision, Rewrite

OnDisk = Part | Revision | NewFile
"""A record of a file: its size, time and SHA-256 when it was written."""


def is_as_written(path: Path, record: OnDisk, digest: Callable[[Path], str] | None = file_digest) -> bool:
    """Return whether a file is what the ledger notes of it. Raises OSError.

    A file with the noted size and time is not read. Otherwise `digest` decides, because a copy has another time. If
    `digest` is None, every file is read.
    """
    stat = path.stat()
    if stat.st_size != record.bytes:
        return False
    if record.sha256 is None or (digest is not None and stat.st_mtime_ns == record.mtime_ns):
        return True
    return (digest or file_digest)(path) == record.sha256


class Underway:
    """The files of an output that are being replaced: rewrites that were begun but not ended."""

    def __init__(self, rewrites: Iterable[Rewrite]) -> None:
        self._rewrites = {number: one for one in rewrites for number in (*one.absorbed, one.part.number)}

    def instead_of(self, part: Part, file: Part | Revision) -> list[NewFile]:
        """Return the other contents that a file of a part may have, because it is being replaced."""
        rewrite = self._rewrites.get(part.number)
        return [one for one in (rewrite.files if rewrite else ()) if one.file == file.file]

    def may_be_gone(self, part: Part, file: Part | Revision) -> bool:
        """Return whether a file may be gone because a rewrite deletes it."""
        rewrite = self._rewrites.get(part.number)
        return rewrite is not None and file.file in rewrite.removed


def committed_rows(record: OutputRecord, folder: Path) -> int:
    """Return how many rows are in committed parts, with those of a part that the next run commits before all else.

    That is a whole part which a run was publishing when it ended, if its file is there under either of its names.
    """
    begun = record.begun
    return record.rows if begun is None or not _is_published(folder, begun) else begun.end


def _is_published(folder: Path, begun: Begun) -> bool:
    """Return whether a whole part has its file; one that cannot be read counts as gone."""
    if begun.name is None or begun.part.file is None:
        return False
    for name in (begun.part.file, begun.name):
        with suppress(OSError):
            if is_as_written(folder / name, begun.part, digest=None):
                return True
    return False


def find_damage(
    folder: Path,
    parts: Iterable[Part],
    digest: Callable[[Path], str] = file_digest,
    *,
    rewrites: Iterable[Rewrite] = (),
    removable: bool = False,
) -> str | None:
    """Return which committed file is not as it was written, and how it differs; None if all are.

    `rewrites` were begun but not ended, so a part may be the old one or the new one. `removable`:
    files may be gone.
    """
    found = damages(folder, parts, digest, rewrites=rewrites, removable=removable)
    return next((f"{file} was committed and {how}" for file, how in found), None)


def damages(
    folder: Path,
    parts: Iterable[Part],
    digest: Callable[[Path], str] = file_digest,
    *,
    rewrites: Iterable[Rewrite] = (),
    removable: bool = False,
) -> Iterator[tuple[str, str]]:
    """Yield the committed files that are not as they were written, and how they differ, as `find_damage`."""
    underway = Underway(rewrites)
    for part in parts:
        for file in part.files:
            how = difference(folder / str(file.file), [file, *underway.instead_of(part, file)], digest)
            if how is not None and not (how == GONE_FILE and (removable or underway.may_be_gone(part, file))):
                yield str(file.file), how


GONE_FILE = "is gone"


def difference(path: Path, records: Sequence[OnDisk], digest: Callable[[Path], str] | None) -> str | None:
    """Return how a file differs from every record of it; None if it matches one.

    `digest` as in `is_as_written`.
    """
    try:
        if not path.is_file():
            return GONE_FILE
        if any(is_as_written(path, record, digest) for record in records):
            return None
        size = path.stat().st_size
    except FileNotFoundError:  # carried away since is_file()
        return GONE_FILE
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return differs(size, records)


def differs(size: int, records: Sequence[OnDisk]) -> str:
    """Return in words how a file of this size differs from its records."""
    if size == records[0].bytes:
        return "holds other bytes than were written"
    return f"has {size} bytes instead of {records[0].bytes}"
