"""What it catches: an option of a provider's built-in form that is given to its plugin package, or the other way round.

Why: OpenVINO's plugin ignores device_type, precision, num_of_threads and most other options of the old wheel. Its log
says so, and the session is created without them.

Example: {provider: OpenVINO, options: {precision: FP16}} with onnxruntime-ep-openvino.

How to fix: see the option's page for its replacement: device:, or a property in load_config.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Certainty
from ortdeploy.providers.catalogue import find_provider
from ortdeploy.providers.options import option_facts
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="ignored-provider-option", summary="Provider option has no effect here", certainty=Certainty.MACHINE)


def check(deployment: "Deployment") -> Iterator[Finding]:
    plugins = {device.provider for device in deployment.facts.runtime.devices}
    for model in deployment.models:
        for session, entry in ((one, entry) for one in model.sessions for entry in one.written):
            provider = find_provider(entry.name)
            if provider is None or provider.name not in {one.name for one in session.chain}:
                continue
            here = "plugin" if provider.name in plugins else "built-in"
            for option in entry.options:
                facts = option_facts(provider, option)
                if facts.get("x-delivery", here) not in {here, "both"}:
                    detail = f"This {provider.name} is the {here} one, which ignores {option}. {facts['description']}"
                    at = (*entry.at, "options", option)
                    yield Finding(at=at, detail=detail, key=True, model=model.spec.name)
