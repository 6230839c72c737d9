"""The output of `ortdeploy check`: a live line, and a line for each golden data set."""

import time
from collections.abc import Iterator, Sequence

from ortdeploy.checks.run import PASSED, CheckResult
from ortdeploy.durations import clock
from ortdeploy.plan.steps import PlannedCheck
from ortdeploy.terminal_text import printable, safe
from ortdeploy.views.live_line import Piece
from ortdeploy.views.text import GREEN, RED, YELLOW, Paint, count, painter, wrapped


class ChecksLine:
    """What the live line of a check shows: the session of the last result, and how many data sets have ended."""

    def __init__(self, checks: Sequence[PlannedCheck]) -> None:
        first = checks[0].opening if checks else None
        self._session = f"{first.model} on {first.candidates[0].name}" if first else ""
        self._ended = self._failed = 0
        self._begin = time.monotonic()

    def end(self, result: CheckResult) -> CheckResult:
        """Count a result, and return it."""
        self._session = f"{result.model} on {result.session}"
        self._ended += 1
        self._failed += result.status != PASSED
        return result

    def pieces(self, ascii_only: bool) -> Iterator[Piece]:  # noqa: ARG002  no sign of it is beyond ASCII
        """Yield what the line shows; a narrow one leaves out the time."""
        yield Piece(text=f"checking {printable(self._session)}", style="bold")
        yield Piece(text=f"{count(self._ended, 'data set')} done")
        yield Piece(text=f"{self._failed:,} not passed" if self._failed else "", rank=1, style="red")
        yield Piece(text=clock(time.monotonic() - self._begin), rank=2, style="cyan")


def render_checks(results: Sequence[CheckResult], *, color: bool, quiet: bool = False, width: int | None = None) -> str:
    """Return each golden data set and a line of counts; with `quiet`, only those that did not pass or prove nothing.

    `width` is that of the terminal; None: each data set is one line.
    """
    paint = painter(color=color)
    lines = [_render_check(one, paint, width) for one in results if not quiet or one.status != PASSED or one.not_proven]
    passed = sum(result.status == PASSED for result in results)
    empty = sum(result.not_proven is not None for result in results)
    but = f", {empty:,} without proving anything: record other inputs" if empty else ""
    return safe("".join(lines) + f"{passed} of {count(len(results), 'check')} passed{but}.\n")


def _render_check(result: CheckResult, paint: Paint, width: int | None) -> str:
    apart = f" (largest difference {result.max_abs_diff:.3g})" if result.max_abs_diff else ""
    told = f"nothing is proven: {result.not_proven}" if result.not_proven else result.message
    why = f": {told}" if told else ""
    model = f"{result.model} with {result.adapter}" if result.adapter else result.model
    said = f"{model} on {result.session}: {result.check}{apart}{why}"
    first = f"{result.status}  "
    lines = f"{first}{said}\n" if width is None else wrapped(said, width, first=first, indent=" " * len(first))
    color = RED if result.status != PASSED else YELLOW if result.not_proven else GREEN
    return lines.replace(result.status, paint(result.status, color), 1)
