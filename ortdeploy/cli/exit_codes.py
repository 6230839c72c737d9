"""The exit codes of the program, and which one of several it has."""

TYPE_CHECKING = False  # as in `main`, which imports this first
if TYPE_CHECKING:
    from collections.abc import Iterable

EXIT_OK = 0
EXIT_REJECTED = 1
EXIT_CHANGES = 2
EXIT_BUG = 3
EXIT_LOCKED = 4
EXIT_PAUSED = 5
EXIT_USAGE = 64
EXIT_INTERRUPTED = 130

_SIGNALS = 128
_WORST_FIRST = (EXIT_BUG, _SIGNALS, EXIT_LOCKED, EXIT_USAGE, EXIT_REJECTED, EXIT_PAUSED, EXIT_OK)


def worst_of(codes: "Iterable[int]") -> int:
    """Return the exit code of several jobs or manifests: that of the worst ending; 0 if there is none.

    Codes above 128 are those of signals, which all are equally bad.
    """
    return min(codes, key=lambda code: _WORST_FIRST.index(min(code, _SIGNALS)), default=EXIT_OK)
