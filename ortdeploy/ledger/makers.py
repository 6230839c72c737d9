"""What made the parts of an output: deployments, and the origins of parts, each under its digest."""

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from ortdeploy.ledger.cells import DEPLOYMENT_COLUMNS, PART_COLUMNS, insert_sealed, typed
from ortdeploy.ledger.forgetting import BEGUN_WITH
from ortdeploy.ledger.records import Part
from ortdeploy.plan.made_by import MadeBy


def read_maker(db: sqlite3.Connection, digest: str) -> MadeBy:
    """Return the deployment of a digest, which made parts. Raises ValueError, TypeError."""
    query = f"SELECT {', '.join(DEPLOYMENT_COLUMNS)} FROM deployments WHERE digest = ?"  # noqa: S608  ours
    row = db.execute(query, (digest,)).fetchone()
    if row is None:
        raise ValueError("the deployment that made a part is not noted")
    values = typed(DEPLOYMENT_COLUMNS, row)
    known = {name: json.loads(values[name]) for name in ("identity", "layout")}
    found = MadeBy(name=values["name"], profile=values["profile"], **known)
    if found.digest != digest:
        raise ValueError("the deployment that made a part is not what was written")
    return found


def read_provenance(db: sqlite3.Connection, digests: Iterable[str]) -> dict[str, Any]:
    """Return the origins of parts by digest, and those of their first rows if another run began them.

    Raises ValueError.
    """
    found: dict[str, Any] = {}
    query = "SELECT entry FROM provenance WHERE digest = ?"
    wanted = list(digests)
    for digest in wanted:
        row = db.execute(query, (digest,)).fetchone()
        if row is None or hashlib.sha256(row[0].encode()).hexdigest() != digest:
            raise ValueError("what a part was made from is not what was written")
        found[digest] = json.loads(row[0])
        before = found[digest].get(BEGUN_WITH)
        wanted += [before] if before is not None and before not in wanted else []
    return found


def with_provenance(db: sqlite3.Connection, part: Part, provenance: Mapping[str, Any] | None) -> Part:
    """Keep a part's origin, and return the part with the origin's digest."""
    if provenance is None:
        return part
    digest, entry = provenance_entry(provenance)
    db.execute("INSERT OR IGNORE INTO provenance VALUES (?, ?)", (digest, entry))
    return replace(part, provenance=digest)


def provenance_entry(provenance: Mapping[str, Any]) -> tuple[str, str]:
    """Return the digest of a part's origin, and the origin as the ledger's JSON."""
    entry = json.dumps(provenance, sort_keys=True)
    return hashlib.sha256(entry.encode()).hexdigest(), entry


def note_deployment(db: sqlite3.Connection, output: str, made_by: MadeBy) -> bool:
    """Note the deployment that makes parts from now on, and that of earlier parts for which none was noted.

    Return whether its identity, on which results depend, is the same as before.
    """
    insert_deployment(db, made_by)
    row = db.execute("SELECT identity, deployment FROM outputs WHERE output = ?", (output,)).fetchone()
    identity = dict(made_by.identity) if row is None else json.loads(row[0])
    is_same: bool = identity == dict(made_by.identity)
    before = made_by if is_same else MadeBy(name=row[1], profile=None, identity=identity, layout=None)
    query = f"SELECT {', '.join(PART_COLUMNS)} FROM parts WHERE output = ? AND deployment IS NULL"  # noqa: S608  ours
    place = list(PART_COLUMNS).index("deployment")
    for cells in db.execute(query, (output,)).fetchall():
        insert_deployment(db, before)
        insert_sealed(db, "parts", output, PART_COLUMNS, (*cells[:place], before.digest, *cells[place + 1 :]))
    return is_same


def insert_deployment(db: sqlite3.Connection, one: MadeBy) -> None:
    """Note a deployment."""
    db.execute(
        "INSERT OR IGNORE INTO deployments (digest, name, profile, identity, layout) VALUES (?, ?, ?, ?, ?)",
        (one.digest, one.name, one.profile, json.dumps(dict(one.identity)), json.dumps(one.layout)),
    )
