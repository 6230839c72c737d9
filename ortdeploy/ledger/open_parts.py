"""Which plans are at work on an output in several processes: while one is, its decisions say what is committed.

They lie in the output folder, beside the parts, because every machine that works on the output sees that folder.
"""

from pathlib import Path

FOLDER = "_parts"
CLOSED = "closed.json"


def open_plans(output: Path) -> frozenset[str]:
    """Return the digests of the plans whose parts are not all in the ledger. Raises OSError."""
    try:
        found = list((output / FOLDER).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()
    return frozenset(one.name for one in found if one.is_dir() and not (one / CLOSED).exists())
