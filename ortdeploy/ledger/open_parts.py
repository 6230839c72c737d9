"""Finds the plans that several processes are running on an output.

While one is running, its decisions and not the ledger say which parts are committed. They are in the output, beside the
parts, because every machine that works on the output sees that folder.
"""

from ortdeploy.files.shared_place import DECISIONS, SharedPlace
from ortdeploy.records import record

FOLDER = DECISIONS
CLOSED = "closed.json"
_DIGITS = 64


@record
class SharedParts:
    """What one look found in an output, or on its store, of processes that make its parts together.

    `names` are all that is there, `open` the digests of the plans whose parts are not all in the ledger.
    """

    place: SharedPlace
    names: frozenset[str]
    open: frozenset[str]


def shared_parts(output: SharedPlace) -> SharedParts:
    """Look at an output. Raises OSError, OrtdeployError."""
    found = output.look(FOLDER, CLOSED)
    is_open = frozenset(name for name, held in found.items() if len(name) == _DIGITS and not held)
    return SharedParts(place=output, names=frozenset(found), open=is_open)


def open_plans(output: SharedPlace) -> frozenset[str]:
    """Return the digests of the plans whose parts are not all in the ledger. Raises OSError, OrtdeployError."""
    return shared_parts(output).open
