"""Finds the plans that several processes are running on an output.

While one is running, its decisions and not the ledger say which parts are committed. They are in the output, beside the
parts, because every machine that works on the output sees that folder.
"""

from msgspec import Struct

from ortdeploy.files.names import BOUND, DECISIONS
from ortdeploy.files.shared_place import GIVEN_UP, SharedPlace

FOLDER = DECISIONS
CLOSED = "closed.json"
KEPT = (CLOSED, BOUND)
"""What is kept of a closed plan."""
_DIGITS = 64


class SharedParts(Struct, frozen=True, kw_only=True):
    """What one look found in an output, or on its store, of processes that make its parts together.

    `names` are the digests of the plans that have begun, `open` those of plans whose parts are not all in the ledger,
    `untidy` those of closed ones of which more is left than is kept.
    """

    place: SharedPlace
    names: frozenset[str]
    open: frozenset[str]
    untidy: frozenset[str]


def shared_parts(output: SharedPlace) -> SharedParts:
    """Look at an output. Raises OSError, OrtdeployError."""
    found = output.look(FOLDER, KEPT)
    plans = {name: held for name, held in found.items() if len(name) == _DIGITS and held}
    closed = frozenset(name for name, held in plans.items() if CLOSED in held)
    is_open = frozenset(name for name in plans if name not in closed and _has_parts(output, name))
    return SharedParts(
        place=output,
        names=closed | is_open,
        open=is_open,
        untidy=frozenset(name for name in closed if plans[name].difference(KEPT)),
    )


def _has_parts(output: SharedPlace, plan: str) -> bool:
    """Return whether a plan has begun, and was not given up before that. Raises OSError, OrtdeployError."""
    return output.read(f"{FOLDER}/{plan}/{BOUND}") not in {None, GIVEN_UP}


def tidy(output: SharedPlace) -> None:
    """Delete what processes that were killed have left of closed plans. Raises OSError, OrtdeployError."""
    for plan in shared_parts(output).untidy:
        output.clear(f"{FOLDER}/{plan}", keep=KEPT)


def open_plans(output: SharedPlace) -> frozenset[str]:
    """Return the digests of the plans whose parts are not all in the ledger. Raises OSError, OrtdeployError."""
    return shared_parts(output).open
