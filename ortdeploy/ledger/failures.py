"""The failed rows of outputs, each as one JSON object (`letters`)."""

import sqlite3
from collections.abc import Sequence
from itertools import chain

from ortdeploy.ledger.records import Begun, FailedBefore
from ortdeploy.results.rows import FailedRow


def insert_failures(db: sqlite3.Connection, output: str, part: int, failures: Sequence[FailedRow]) -> None:
    """Note failed rows of a part."""
    if not failures:
        return
    from ortdeploy.ledger.letters import letter  # noqa: PLC0415  only where rows failed

    rows = [(output, failure.row, part, letter(failure)) for failure in failures]
    db.executemany("INSERT OR REPLACE INTO failures VALUES (?, ?, ?, ?)", rows)


def failed_of_parts(db: sqlite3.Connection, output: str) -> dict[int, dict[int, FailedBefore]]:
    """Return the failed rows of committed parts, with their attempts, by part and row."""
    query = (
        "SELECT part, row, entry, part IN (SELECT number FROM parts WHERE output = ?) FROM failures "
        "WHERE output = ? ORDER BY row"
    )
    found: dict[int, dict[int, FailedBefore]] = {}
    rows = db.execute(query, (output, output))
    first = rows.fetchone()
    if first is None:
        return found
    from ortdeploy.ledger.letters import failed_before  # noqa: PLC0415  only where rows failed

    for part, row, entry, is_committed in chain((first,), rows):
        before = failed_before(row, entry)
        if is_committed:
            found.setdefault(part, {})[row] = before
    return found


def failed_of_begun(db: sqlite3.Connection, output: str, begun: Begun) -> dict[int, FailedBefore]:
    """Return the failed rows of a part that was begun, with their attempts, by row."""
    from ortdeploy.ledger.letters import failed_before  # noqa: PLC0415  only where a part was begun

    query = "SELECT row, entry FROM failures WHERE output = ? AND part = ? AND row < ? ORDER BY row"
    found = db.execute(query, (output, begun.part.number, begun.end)).fetchall()
    return {row: failed_before(row, entry) for row, entry in found}
