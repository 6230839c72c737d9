"""What it catches: a model with gate: true that has no checks, neither its own nor those of its adapters.

Why: the manifest promises a check before its jobs run, and nothing would be checked.

Example: models: {digits: {path: digits.onnx, gate: true}}

How to fix: name folders of golden inputs and outputs under checks:, or remove gate.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="gate-without-checks", summary="Gate has nothing to check")


def check(spec: "Spec") -> Iterator[Finding]:
    checked = {model for model, _ in spec.checks()}
    for model in spec.models:
        if model.gate and model.name not in checked:
            detail = f'Model "{model.name}" says gate: true and names no checks. Add checks: [FOLDER], or remove gate.'
            yield Finding(at=(*model.at, "gate"), detail=detail, key=True, model=model.name)
