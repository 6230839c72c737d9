"""Finds the plans that several processes are running on an output.

While one is running, its decisions and not the ledger say which parts are committed. They are in the output, beside the
parts, because every machine that works on the output sees that folder.
"""

from ortdeploy.files.shared_place import DECISIONS, SharedPlace

FOLDER = DECISIONS
CLOSED = "closed.json"
_DIGITS = 64


def open_plans(output: SharedPlace) -> frozenset[str]:
    """Return the digests of the plans whose parts are not all in the ledger. Raises OSError, OrtdeployError."""
    return frozenset(name for name in output.folders_without(FOLDER, CLOSED) if len(name) == _DIGITS)
