"""Compares committed parts that lie on an object store, and not on this machine, with what the ledger noted of them."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ortdeploy.files.names import REPORT
from ortdeploy.ledger.integrity import GONE_FILE, OnDisk, differs

if TYPE_CHECKING:
    from ortdeploy.files.shared_store import SharedStore


def difference_there(url: str, file: str, records: Sequence[OnDisk]) -> str | None:
    """Return how an object differs from every record of it; None if it matches one. It is read whole.

    Raises OrtdeployError if the store does not give it.
    """
    store = _store(url)
    size = store.size(file)
    if size is None:
        return GONE_FILE
    of_that_size = [one.sha256 for one in records if one.bytes == size]
    if of_that_size and (None in of_that_size or store.digest(file) in of_that_size):
        return None
    return differs(size, records)


class Copies:
    """Local copies of the parts on a store, of which one listing says what is there."""

    def __init__(self, url: str) -> None:
        """Ask the store. Raises OrtdeployError if it does not answer."""
        self.url = url
        self._listed = _store(url).listed()

    def difference(self, copy: Path, records: Sequence[OnDisk]) -> str | None:
        """Return how the object of a copy that is as it was written differs from every record; None if it does not.

        An object without the mark of the copy's content is read: not every store has the MD5 as its ETag.
        """
        from ortdeploy.files.shared_store import marks_of  # noqa: PLC0415  only for an object store

        size, marks = self._listed.get(copy.name, (None, frozenset[str]()))
        if size == copy.stat().st_size and not marks.isdisjoint(marks_of(copy)):
            return None
        return difference_there(self.url, copy.name, records)


def stored_differences(url: str) -> Callable[[str, Sequence[OnDisk]], str | None]:
    """Ask a store once; return a function that says how an object differs from every record of it.

    It compares sizes with a listing, and SHA-256 with the report on the store. It reads no part, because a restore of
    the ledger must not take long. Raises OrtdeployError if the store does not answer.
    """
    store = _store(url)
    sizes, reported = store.sizes(), _reported(store.read(REPORT))

    def difference(file: str, records: Sequence[OnDisk]) -> str | None:
        size = sizes.get(file)
        if size is None:
            return GONE_FILE
        digests = {one.sha256 for one in records if one.bytes == size}
        is_other = file in reported and None not in digests and reported[file] not in digests
        return differs(size, records) if is_other or not digests else None

    return difference


def _store(url: str) -> "SharedStore":
    from ortdeploy.files.shared_store import SharedStore  # noqa: PLC0415  only for an object store

    return SharedStore(url)


def _reported(raw: bytes | None) -> Mapping[str, str]:
    """Return the SHA-256 of each part in a report; none if there is no report, or if it cannot be read as one."""
    with suppress(ValueError, TypeError, LookupError, AttributeError, RecursionError):
        parts = json.loads(raw or b"{}").get("parts", ())
        files = [one for part in parts for one in (part, *part["revisions"])]
        return {one["file"]: one["sha256"] for one in files if one["sha256"] is not None}
    return {}
