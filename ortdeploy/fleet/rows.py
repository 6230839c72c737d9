"""Reads the status documents that devices have sent, and says which of them need somebody.

Documents are a stranger's: whatever is in them becomes a row that says what it is, and nothing else happens.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct, ValidationError, json

from ortdeploy.durations import moment
from ortdeploy.files.listing import expand
from ortdeploy.files.names import is_folder
from ortdeploy.files.opening import open_regular
from ortdeploy.fleet.document import FORMAT_VERSION, LAST_SECOND, Document, seconds_of

MOST_BYTES = 1024 * 1024
"""Bytes that a document may have; those of this version have a quarter at most."""
_AHEAD = 600
"""Seconds by which a clock that is kept right may be ahead of the collector's."""

_MOST = 2**63

BAD = ("unreadable", "missing", "failed", "refused", "late", "behind")
"""What may be wrong with a row, the worst first: `behind` is one whose version is not the wanted one."""


class Row(Struct, frozen=True, kw_only=True):
    """A deployment of a device, or a device that has not reported, or a file that is no document.

    `wrong` are words of BAD, and `why` a sentence for each. `seen` is when ortdeploy has last looked there.
    """

    device: str
    wrong: tuple[str, ...]
    why: tuple[str, ...] = ()
    file: str | None = None
    document: Document | None = None
    seen: float | None = None


class Wish(Struct, frozen=True, kw_only=True):
    """What is held against the documents.

    The names of devices that must have sent one, the version (a bundle's id, a commit or the digest of a text, also
    its beginning), and the seconds after which a device that has not looked is late.
    """

    devices: Sequence[str] = ()
    version: str | None = None
    older: float | None = None


def read_fleet(paths: Sequence[str], wish: Wish, now: float) -> list[Row]:
    """Return a row for each document in folders and globs, and for each device that is missing; the worst come first.

    `now` is in seconds since 1970.
    """
    rows = [_row(path, wish, now) for path in dict.fromkeys(_files(paths))]
    told = {row.device for row in rows if row.document is not None}
    rows += [
        Row(device=name, wrong=("missing",), why=("it has not reported",))
        for name in dict.fromkeys(wish.devices)
        if name not in told
    ]
    return sorted(rows, key=_order)


def _order(row: Row) -> tuple[int, str, str]:
    worst = min(map(BAD.index, row.wrong), default=len(BAD))
    return worst, row.device, row.document.deployment if row.document else row.file or ""


def _files(paths: Sequence[str]) -> Iterator[str]:
    """Yield the documents in folders, at any depth and behind no link, and those that globs name."""
    for path in paths:
        if not is_folder(path):
            yield from expand(path)
            continue
        for folder, folders, names in os.walk(path):
            folders.sort()
            yield from (os.path.join(folder, name) for name in sorted(names) if name.endswith(".json"))  # noqa: PTH118


def _row(path: str, wish: Wish, now: float) -> Row:
    try:
        with open_regular(path) as file:
            content, changed = file.read(MOST_BYTES + 1), os.fstat(file.fileno()).st_mtime
    except (OSError, ValueError) as error:
        return _no_document(path, f"cannot be read: {getattr(error, 'strerror', None) or error}")
    if len(content) > MOST_BYTES:
        return _no_document(path, "has over 1 MiB, and no status document has")
    try:
        document = json.decode(content, type=Document)
        _check(document)
    except (ValueError, RecursionError) as error:
        return _no_document(path, _what_is_wrong(content, error))
    return _judged(path, document, changed, wish, now)


def _no_document(path: str, why: str) -> Row:
    return Row(device=Path(path).name, wrong=("unreadable",), why=(f"it {why}",), file=path)


class _Format(Struct):
    format_version: int


def _what_is_wrong(content: bytes, error: Exception) -> str:
    """Return why a text is no status document of this version."""
    try:
        version = json.decode(content, type=_Format).format_version
    except (ValueError, RecursionError):
        version = FORMAT_VERSION
    if version != FORMAT_VERSION:
        return f"has format {version}, and this ortdeploy reads {FORMAT_VERSION}: another version has written it"
    return f"is {'no status document' if isinstance(error, ValidationError) else 'damaged'}: {error}"


def _check(document: Document) -> None:
    """Raise ValueError if a time is none, a number is none that counts, or the document has another format."""
    if document.format_version != FORMAT_VERSION:
        raise ValueError
    counted = ("committed", "failed", "skipped", "left", "waiting", "damaged_parts", "memory_growth")
    facts = [value for value in document.profile.facts.values() if isinstance(value, int)]
    own_numbers = (*facts, document.version.number or 0, document.sequence)
    numbers = [getattr(job, name) or 0 for job in document.jobs for name in counted]
    if not all(0 <= number < _MOST for number in (*numbers, *own_numbers)):
        raise ValueError("a number in it counts nothing")
    jobs = (time for job in document.jobs for time in (job.last_row, job.oldest_waiting))
    refused = document.refusal.since if document.refusal else None
    own = (document.last_look, document.next_look, document.clock.now, document.profile.since, refused)
    for time in (*own, *jobs):
        if time is not None:
            seconds_of(time)


def _judged(path: str, document: Document, changed: float, wish: Wish, now: float) -> Row:
    """Return the row of a document that is whole; its file has `changed` at that time, by the collector's clock."""
    is_right = document.clock.synchronised is True
    looked = seconds_of(document.last_look)
    seen = looked if is_right else min(max(changed, 0.0), LAST_SECOND)
    due = None if document.next_look is None else seen + seconds_of(document.next_look) - looked
    found = dict(_wrong(document, wish))
    if is_right and looked > now + _AHEAD:
        found["unreadable"] = "its time is in the future, though its clock is said to be right"
    elif due is not None and due < now:
        found["late"] = "it should have looked again by now"
    elif wish.older is not None and seen < now - wish.older:
        found["late"] = "it has not looked for long"
    wrong = tuple(one for one in BAD if one in found)
    why = tuple(found[one] for one in wrong)
    return Row(device=document.device.name, wrong=wrong, why=why, file=path, document=document, seen=seen)


def _wrong(document: Document, wish: Wish) -> Iterator[tuple[str, str]]:
    refusal = document.refusal
    if document.state == "refused":
        yield "refused", f"refused since {moment(refusal.since)}: {_reason(document)}" if refusal else "refused"
    failed = [job.name for job in document.jobs if job.status == "failed"]
    if document.state == "failed" or failed:
        yield "failed", f"failed: {', '.join(failed) or 'ortdeploy status says why'}"
    if wish.version is not None and not _is_wanted(document, wish.version):
        yield "behind", "another version runs than is wanted"


def _reason(document: Document) -> str:
    refusal = document.refusal
    if refusal is None:
        return ""
    place = "" if refusal.path is None else f", {refusal.path}{'' if refusal.line is None else f':{refusal.line}'}"
    return f"{refusal.summary}{'' if refusal.rule is None else f' [{refusal.rule}]'}{place}"


def _is_wanted(document: Document, version: str) -> bool:
    wanted = version.removeprefix("sha256:").lower()
    version_of = document.version
    ids = (version_of.bundle, version_of.commit, version_of.text_digest)
    return any(one is not None and one.removeprefix("sha256:").startswith(wanted) for one in ids)
