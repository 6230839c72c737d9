"""Diagnostics as GitHub workflow commands, which become annotations on the lines of a pull request."""

from collections.abc import Sequence

from ortdeploy.diagnostics import Diagnostic


def render_diagnostics(diagnostics: Sequence[Diagnostic]) -> str:
    """Return one workflow command for each diagnostic."""
    return "".join(f"{_render(diagnostic)}\n" for diagnostic in diagnostics)


def _render(diagnostic: Diagnostic) -> str:
    span = diagnostic.span
    place = f"file={_property(span.path)},line={span.line},col={span.column}"
    title = _property(f"{diagnostic.summary} [{diagnostic.rule}]")
    return f"::{diagnostic.severity} {place},title={title}::{_data(diagnostic.detail)}"


def _data(text: str) -> str:
    """Escape as the runner's toolkit does: percent, carriage return, line feed."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
