"""What it catches: a compiled model that its provider on this machine runs, but would rather compile again.

Why: the provider has found that the binaries are of an older version or for another chip of the family. They run, but
perhaps not as fast as they could, and a later version may refuse them.

Example: a model that QNN compiled with an older QAIRT SDK than the one in the installed package.

How to fix: compile the model again with the versions and for the chip of this machine.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Certainty, Severity
from ortdeploy.facts.preflight import BETTER_ANEW
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(
    id="outdated-compiled-model",
    summary="Compiled model should be compiled again",
    severity=Severity.WARNING,
    certainty=Certainty.MACHINE,
)


def check(deployment: "Deployment") -> Iterator[Finding]:
    for model in deployment.models:
        for one in deployment.preflight.compiled.get(model.spec.name, ()):
            if one.verdict == BETTER_ANEW:
                detail = (
                    f'{model.spec.path} was compiled for "{one.compiled}". {one.here} of session "{one.session}" runs '
                    "that, and advises to compile the model again."
                )
                yield Finding(at=(*model.spec.at, "path"), detail=detail, model=model.spec.name)
