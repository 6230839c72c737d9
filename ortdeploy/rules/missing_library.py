"""What it catches: an option of a provider that needs a library which is missing, both beside the provider's own
library and in the system's search path: QNN's backend_type, backend_path and operator packages, TensorRT's plugin
libraries.

Why: the provider logs that it cannot load the library and takes no node, and the session runs on the CPU.

Example: {provider: QNN, options: {backend_type: cpu}} with onnxruntime-qnn, which has no libQnnCpu.so.

How to fix: choose a library that the package has, install the library and name it by its path, or allow the next
provider with on_unavailable: next.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.deployment.resolved import missing_library
from ortdeploy.diagnostics import Certainty
from ortdeploy.providers.catalogue import full_name
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="missing-library", summary="Library of a provider is missing", certainty=Certainty.MACHINE)


def check(deployment: "Deployment") -> Iterator[Finding]:
    for model in (one for one in deployment.models if not one.usable):
        for entry in (entry for session in model.sessions for entry in session.unavailable):
            missing = missing_library(entry, deployment.facts.runtime)
            if missing is None:
                continue
            option, library = missing
            detail = (
                f"{full_name(entry.name)} would load {library} for its {option}, but it is neither beside the "
                "provider's own library nor where the system looks. The provider would take no node. Choose another "
                f"{option}, or install the library and name it by its path."
            )
            yield Finding(at=(*entry.at, "options", option), detail=detail, model=model.spec.name)
