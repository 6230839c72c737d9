"""What it catches: a compiled model that its provider on this machine does not run: it was compiled for another chip,
or by a version that does not fit.

Why: such a model holds binaries with EPContext nodes, and a text that says what they are for. The provider compares the
text with the device. Without this rule the session fails when the job begins, in words of the vendor's library, or runs
and answers with other numbers.

Example: a model that OpenVINO 2025 compiled, on a machine with OpenVINO 2026.

How to fix: compile the model again with the versions and for the chip of this machine. Or deploy the model that it was
made from, with cache: true, which compiles it on the device.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Certainty
from ortdeploy.facts.preflight import UNSUPPORTED
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(
    id="incompatible-compiled-model",
    summary="Compiled model does not run on this machine",
    certainty=Certainty.MACHINE,
)


def check(deployment: "Deployment") -> Iterator[Finding]:
    for model in deployment.models:
        for one in deployment.preflight.compiled.get(model.spec.name, ()):
            if one.verdict == UNSUPPORTED:
                detail = (
                    f'{model.spec.path} was compiled for "{one.compiled}", and {one.here} of session "{one.session}" '
                    "does not run that. Compile it again for this machine, or deploy the model that it was made from."
                )
                yield Finding(at=(*model.spec.at, "path"), detail=detail, model=model.spec.name)
