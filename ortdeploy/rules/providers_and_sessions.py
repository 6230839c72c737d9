"""What it catches: a model with both providers: and sessions:, or two sessions with the same name.

Why: one of the two would be ignored. And the plan, the logs and the report tell sessions apart by name.

Example:

    models: {digits: {path: digits.onnx, providers: [CPU], sessions: [{name: cpu, providers: [CPU]}]}}

How to fix: keep one of the two, or give each session a name of its own.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="providers-and-sessions", summary="Sessions are declared twice")


def check(spec: "Spec") -> Iterator[Finding]:
    for model in spec.models:
        if model.has_providers_and_sessions:
            detail = f'Model "{model.name}" has providers: and sessions:. Keep one of them.'
            yield Finding(at=(*model.at, "sessions"), detail=detail, key=True, model=model.name)
        names: set[str] = set()
        for session in model.sessions:
            if session.name in names:
                detail = f'Model "{model.name}" has another session "{session.name}". Give this one another name.'
                yield Finding(at=(*session.at, "name"), detail=detail, model=model.name)
            names.add(session.name)
