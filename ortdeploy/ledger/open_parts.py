"""Finds the plans that several processes are running on an output.

While one is running, its decisions and not the ledger say which parts are committed. They are in the output, beside the
parts, because every machine that works on the output sees that folder.
"""

from ortdeploy.files.shared_place import BOUND, DECISIONS, SharedPlace
from ortdeploy.records import record

FOLDER = DECISIONS
CLOSED = "closed.json"
KEPT = (CLOSED, BOUND)
"""What is kept of a closed plan."""
_DIGITS = 64


@record
class SharedParts:
    """What one look found in an output, or on its store, of processes that make its parts together.

    `names` are all that is there, `open` the digests of the plans whose parts are not all in the ledger, `untidy` those
    of closed ones of which more is left than is kept.
    """

    place: SharedPlace
    names: frozenset[str]
    open: frozenset[str]
    untidy: frozenset[str]


def shared_parts(output: SharedPlace) -> SharedParts:
    """Look at an output. Raises OSError, OrtdeployError."""
    found = output.look(FOLDER, CLOSED)
    plans = {name: held for name, held in found.items() if len(name) == _DIGITS}
    return SharedParts(
        place=output,
        names=frozenset(found),
        open=frozenset(name for name, held in plans.items() if not held),
        untidy=frozenset(name for name, held in plans.items() if held.difference(KEPT)),
    )


def tidy(output: SharedPlace) -> None:
    """Delete what processes that were killed have left of closed plans. Raises OSError, OrtdeployError."""
    for plan in shared_parts(output).untidy:
        output.clear(f"{FOLDER}/{plan}", keep=KEPT)


def open_plans(output: SharedPlace) -> frozenset[str]:
    """Return the digests of the plans whose parts are not all in the ledger. Raises OSError, OrtdeployError."""
    return shared_parts(output).open
