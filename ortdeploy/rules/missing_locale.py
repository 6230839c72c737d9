"""What it catches: a StringNormalizer that changes or ignores case, if the system does not have its locale. The default
is en_US.UTF-8.

Why: ONNX Runtime refuses the session: "Failed to construct locale with name: en_US.UTF-8". Slim containers and small
devices have only the locale C; text models of scikit-learn need the other.

Example: a TfidfVectorizer exported with lowercase, in a python:slim container.

How to fix: install the locale (Debian: locales, then locale-gen en_US.UTF-8), or export the model with locale C.UTF-8.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Certainty
from ortdeploy.facts.host import DEFAULT_LOCALE
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment
    from ortdeploy.facts.models import NodeFacts

RULE = Rule(id="missing-locale", summary="System lacks a locale that a node needs", certainty=Certainty.MACHINE)


def check(deployment: "Deployment") -> Iterator[Finding]:
    if deployment.facts.runtime.has_default_locale is not False:
        return
    for model in deployment.models:
        needing = next((node for node in model.facts.nodes if _needs_default_locale(node)), None)
        if needing is not None and model.usable:
            detail = (
                f'Model "{model.spec.name}" has a StringNormalizer that needs the locale {DEFAULT_LOCALE}, and this '
                "system does not have it. Install it, or export the model with locale C.UTF-8."
            )
            yield Finding(at=(*model.spec.at, "path"), detail=detail, model=model.spec.name)


def _needs_default_locale(node: "NodeFacts") -> bool:
    """Return whether a node makes the locale: it changes case, or compares without it (string_normalizer.cc)."""
    said = node.attributes
    changes = said.get("case_change_action", "NONE") != "NONE"
    compares = said.get("is_case_sensitive", "0") == "0" and ("stopwords" in said)
    named = said.get("locale") or DEFAULT_LOCALE
    return node.operator == "StringNormalizer" and (changes or compares) and named == DEFAULT_LOCALE
