"""What a rule is: a page (its module's docstring), a `RULE`, and a generator `check` over one noun.

A rule looks at the spec (`validate` runs it too) or at the deployment, the spec joined with facts (`plan` runs it).
It yields findings at paths of the manifest; it never opens a file, computes a line number or logs.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.diagnostics import Certainty, Diagnostic, Severity, Span

if TYPE_CHECKING:
    from ortdeploy.manifest.document import Path
    from ortdeploy.manifest.spec import Spec


class Rule(Struct, frozen=True, kw_only=True):
    """A rule's name as users see it, how bad what it finds is, and its fixed summary."""

    id: str
    summary: str
    severity: Severity = Severity.ERROR
    certainty: Certainty = Certainty.FILES


class Finding(Struct, frozen=True, kw_only=True):
    """One complaint of a rule; `key` points at the key of the place instead of its value.

    `certainty` is the rule's own where the finding says none.
    """

    at: "Path"
    detail: str
    key: bool = False
    certainty: Certainty | None = None
    model: str | None = None
    job: str | None = None


class RuleModule(Protocol):
    """The names that a rule's module has."""

    __doc__: str | None
    RULE: Rule

    def check(self, noun: Any, /) -> Iterator[Finding]:
        """Yield what the rule objects to in a spec or a deployment."""


class RuleCrashError(Exception):
    """A rule failed by itself: a bug of ortdeploy, reported with the rule's name."""


def check_rules(rules: Iterable[RuleModule], noun: Any, spec: "Spec") -> tuple[Diagnostic, ...]:
    """Run rules over a spec or a deployment and give their findings a place in the file."""
    diagnostics = []
    for module in rules:
        try:
            findings = list(module.check(noun))
        except Exception as error:
            raise RuleCrashError(f"rule {module.RULE.id}: {error!r}") from error
        diagnostics += _deduplicated([diagnose(module.RULE, finding, spec) for finding in findings])
    return tuple(diagnostics)


def _deduplicated(diagnostics: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Join what is said of several models at one place, such as the providers of all components of a preset."""
    alike: dict[tuple[Span, str], list[Diagnostic]] = {}
    for one in diagnostics:
        text = one.detail.replace(f'"{one.model}"', '""') if one.model else one.detail
        alike.setdefault((one.span, text), []).append(one)
    return [_joined(group) for group in alike.values()]


def _joined(group: Sequence[Diagnostic]) -> Diagnostic:
    first, others = group[0], dict.fromkeys(f'"{one.model}"' for one in group[1:] if one.model != group[0].model)
    return replace(first, detail=f"{first.detail} The same holds for {' and '.join(others)}.") if others else first


def diagnose(rule: Rule, finding: Finding, spec: "Spec") -> Diagnostic:
    """Give a rule's finding its place in the file."""
    return Diagnostic(
        rule=rule.id,
        severity=rule.severity,
        summary=rule.summary,
        detail=finding.detail,
        span=spec.locate(finding.at, key=finding.key),
        certainty=finding.certainty or rule.certainty,
        model=finding.model,
        job=finding.job,
    )
