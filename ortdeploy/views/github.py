"""Diagnostics as GitHub workflow commands, which become annotations on the lines of a pull request."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Diagnostic
from ortdeploy.terminal_text import plain

if TYPE_CHECKING:
    from ortdeploy.plan.steps import Plan


def render_diagnostics(diagnostics: Sequence[Diagnostic]) -> str:
    """Return one workflow command for each diagnostic."""
    return "".join(f"{_render(diagnostic)}\n" for diagnostic in diagnostics)


def render_plan(plans: "Sequence[Plan]") -> str:
    """Return a notice for each job whose data was not looked at: it is no finding, and something was not looked at."""
    return "".join(f"{line}\n" for plan in plans for line in _notices(plan))


def _notices(plan: "Plan") -> Iterator[str]:
    from ortdeploy.plan.steps import NOT_LOOKED_AT, RunJob  # noqa: PLC0415  only who plans

    for step in plan.steps:
        if isinstance(step, RunJob) and step.input.elsewhere is not None:
            detail = f'Job "{step.job}" was planned without a look at its data. {step.input.elsewhere} {NOT_LOOKED_AT}'
            yield f"::notice file={_property(plan.manifest)},title=Data was not looked at::{_data(detail)}"


def _render(diagnostic: Diagnostic) -> str:
    span = diagnostic.span
    place = f"file={_property(span.path)},line={span.line},col={span.column}"
    title = _property(f"{diagnostic.summary} [{diagnostic.rule}]")
    where = f" (on {', '.join(diagnostic.devices)})" if diagnostic.devices else ""
    return f"::{diagnostic.severity} {place},title={title}::{_data(diagnostic.detail + where)}"


def _data(text: str) -> str:
    """Escape as the runner's toolkit does: percent, carriage return, line feed. No other control character goes out."""
    return plain(text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A"))


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
