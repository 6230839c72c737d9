"""Carries what a ledger knows of one output into a file, and from such a file into a ledger that does not know it.

The file is a ledger of its own. One lies beside the parts of outputs that both shards and one machine have made, so
that a lost ledger can be made again. The functions work on an open connection.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

from ortdeploy.files.opening import regular_path
from ortdeploy.ledger.changes import OF_CHANGES
from ortdeploy.ledger.contents import TABLE as CONTENTS
from ortdeploy.ledger.damage import damaged
from ortdeploy.ledger.forgetting import forget_origins
from ortdeploy.ledger.versions import bring_up_to_date

OF_OUTPUTS = ("parts", "begun", "failures", "inputs", "revisions", "repairs", CONTENTS, *OF_CHANGES)
"""The tables, besides `outputs`, whose rows belong to an output."""

_BESIDE = ("deployments", "provenance")
"""The tables that rows of any output may refer to."""


def copy_output(db: sqlite3.Connection, output: str, file: Path) -> None:
    """Write what is known of an output into a new file. Raises sqlite3.Error."""
    with closing(sqlite3.connect(file, isolation_level=None)) as copy:
        db.backup(copy)
        copy.execute("PRAGMA foreign_keys = ON")
        copy.execute("DELETE FROM outputs WHERE output != ?", (output,))
        forget_origins(copy)
        copy.execute("VACUUM")


def take_over(db: sqlite3.Connection, output: str, file: Path) -> None:
    """Take over what a file knows of its one output, in the caller's transaction. Raises sqlite3.Error, ValueError."""
    with closing(sqlite3.connect(regular_path(file), isolation_level=None)) as copy:
        copy.execute("PRAGMA trusted_schema = OFF")
        bring_up_to_date(copy)
        if copy.execute("SELECT COUNT(*) FROM outputs").fetchone() != (1,):
            raise ValueError(damaged("a copy of it does not know one output"))
        for table in (*_BESIDE, "outputs", *OF_OUTPUTS):
            rows = copy.execute(f"SELECT * FROM {table}")  # noqa: S608  ours
            names = [one[0] for one in rows.description]
            cells = ", ".join(f":{name}" for name in names)
            query = f"INSERT OR IGNORE INTO {table} ({', '.join(names)}) VALUES ({cells})"  # noqa: S608  ours
            own = {"output": output} if "output" in names else {}
            db.executemany(query, ({**dict(zip(names, row, strict=True)), **own} for row in rows))
