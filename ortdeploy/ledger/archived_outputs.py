"""Finds an old output that a run was renaming, to make room for its own, when it was killed.

The folder gets its new name first, and the ledger notes that last. In between, the ledger knows parts that are not
where it says, as if all of them had been carried away. They were not if a folder has the new name, names this ledger,
and the ledger knows nothing under that name.
"""

from itertools import takewhile
from pathlib import Path

from ortdeploy.files.names import is_there, names_aside, relative
from ortdeploy.ledger.damage import FILE
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.opening import named_ledger
from ortdeploy.ledger.records import OutputRecord


def put_aside_before(ledger: Ledger, folder: Path, known: OutputRecord) -> Path | None:
    """Return the renamed folder of an output that the ledger still knows under its old name; None if there is none."""
    if is_there(folder):
        return None
    own = relative(ledger.state_dir.absolute() / FILE, folder.absolute())
    there = takewhile(is_there, names_aside(folder, known.started))
    ours = [path for path in there if named_ledger(path) == own and ledger.output(ledger.key(path)) is None]
    return ours[-1] if ours else None
