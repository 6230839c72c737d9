"""Reads what the tables of a ledger know of outputs: records of outputs with their parts, later files and kept rows."""

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from ortdeploy.ledger.cells import (
    BEGUN_COLUMNS,
    OUTPUT_COLUMNS,
    PART_COLUMNS,
    REVISION_COLUMNS,
    check_time,
    part_of,
    revision_of,
    sealed_rows,
    typed,
    unsealed,
)
from ortdeploy.ledger.changes import read_leaving, read_reruns, read_withdrawn
from ortdeploy.ledger.forgetting import read_forgotten
from ortdeploy.ledger.records import STATUSES, Begun, OutputRecord, Part, Revision
from ortdeploy.ledger.rewrites import read_rewrites


class StoredRecords:
    """The records of outputs in a ledger. Methods raise ValueError, TypeError for what is not as it was written."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._read_parts: dict[int, tuple[tuple[Any, ...], Part]] = {}  # those last read: only others are checked

    def record(self, row: Sequence[Any]) -> OutputRecord:
        """Return the record of a row of `outputs`."""
        values = typed(OUTPUT_COLUMNS, row)
        identity, statistics = json.loads(values["identity"]), json.loads(values["statistics"])
        if not isinstance(identity, dict) or not isinstance(statistics, dict):
            raise TypeError("the identity or the statistics of an output are none")
        if values["status"] not in STATUSES:
            raise ValueError(f"the status of an output is {values['status']!r}")
        check_time(values["started"])
        check_time(values["ended"])
        known: dict[str, Any] = {"identity": identity, "statistics": statistics, "parts": self.parts(values["output"])}
        query = "SELECT COUNT(*) FROM failures WHERE output = ?"
        (noted,) = self._connection.execute(query, (values["output"],)).fetchone()
        known |= {"begun": self._begun(values["output"]), "noted_failures": noted}
        return OutputRecord(**{**values, **known, **self._changes(values["output"])})

    def _changes(self, output: str) -> dict[str, Any]:
        """Return the fields of an OutputRecord about files that have changed, and about forgotten parts."""
        db = self._connection
        return {
            "rewrites": read_rewrites(db, output),
            "reruns": read_reruns(db, output),
            "leaving": read_leaving(db, output),
            "forgotten": read_forgotten(db, output),
        }

    def parts(self, output: str) -> tuple[Part, ...]:
        """Return the committed parts of an output, in order."""
        query = f"SELECT {', '.join(PART_COLUMNS)}, seal FROM parts WHERE output = ? ORDER BY number"  # noqa: S608  ours
        revisions, withdrawn = self._revisions(output), read_withdrawn(self._connection, output)
        before, self._read_parts, found = self._read_parts, {}, []
        for row in self._connection.execute(query, (output,)):
            known = before.get(row[0])
            part = _read_part(row) if known is None or known[0] != row else known[1]
            self._read_parts[row[0]] = (row, part)
            later, gone = tuple(revisions.pop(part.number, ())), tuple(withdrawn.get(part.number, ()))
            found.append(replace(part, revisions=later, withdrawn=gone) if later or gone else part)
        if revisions:
            raise ValueError(f"part {min(revisions)}, which there is not, has a file that was written later")
        return tuple(found)

    def _revisions(self, output: str) -> dict[int, list[Revision]]:
        """Return the files that were written later than their parts, by part."""
        what = "what stands there of a later file of part {}"
        found: dict[int, list[Revision]] = {}
        for row in sealed_rows(self._connection, "revisions", output, REVISION_COLUMNS, what, "part, revision"):
            found.setdefault(row["part"], []).append(revision_of(row))
        return found

    def _begun(self, output: str) -> Begun | None:
        what = "what stands there of part {}, which was begun,"
        values = next(sealed_rows(self._connection, "begun", output, BEGUN_COLUMNS, what), None)
        if values is None:
            return None
        state, name = values.pop("state"), values.pop("name")
        return Begun(part=part_of(values), state=state, name=name)


def _read_part(row: Sequence[Any]) -> Part:
    """Return the part of a row. Raises ValueError, TypeError if the row is not what was written."""
    return part_of(typed(PART_COLUMNS, unsealed(row, f"what stands there of part {row[0]}")))
