"""The pages of rules: what a rule catches, why, an example, and how to fix it."""

from ortdeploy.manifest.pages import PAGES
from ortdeploy.rules.catalogue import RULES, load_rule

_REMEDY = "How to fix:"


def page_of(rule: str) -> str | None:
    """Return the page of a rule; None if there is no such rule."""
    if rule in RULES:
        module = load_rule(rule)
        return f"{rule}: {module.RULE.summary} ({module.RULE.severity})\n\n{(module.__doc__ or '').strip()}"
    if rule in PAGES:
        summary, text = PAGES[rule]
        return f"{rule}: {summary}\n\n{text}"
    return None


def remedy_of(rule: str) -> str:
    """Return how to fix what a rule finds, as its page says it; empty if no page says it."""
    return (page_of(rule) or "").partition(_REMEDY)[2].strip()
