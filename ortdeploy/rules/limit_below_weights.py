"""What it catches: a limit of a provider's memory that is less than the weights of the model: gpu_mem_limit of CUDA,
migraphx_mem_limit, npu_mem_limit of CANN.

Why: weights are in the arena that the option limits, but ONNX Runtime reserves their memory without a look at it. The
arena then has taken more than its limit, and has none any more: the job takes as much as it likes. With
enable_mem_pattern: false, the session does not open ("Available memory of … is smaller than requested bytes of …").

Example: {provider: CUDA, options: {gpu_mem_limit: 512MiB}} for a model with weights of 1 GiB.

How to fix: add the size of the weights to the limit, or keep them out of the arena with memory:
{device_allocator_for_initializers: true}; the limit then is that of the values of runs.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.providers.catalogue import find_provider
from ortdeploy.providers.options import option_facts, serialise
from ortdeploy.rules.protocol import Finding, Rule
from ortdeploy.units import format_size

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="limit-below-weights", summary="Provider's memory limit is less than the weights")

_OUTSIDE = "session.use_device_allocator_for_initializers"


def check(deployment: "Deployment") -> Iterator[Finding]:
    for model in deployment.models:
        is_outside = str(model.session.get("config", {}).get(_OUTSIDE, 0)).lower() in {"1", "true"}
        if is_outside or model.spec.cpu_fallback == "allow":  # how many weights the provider gets is not known
            continue
        weights = model.facts.weights.size
        for entry in (entry for session in model.sessions for entry in session.written[:1]):
            provider = find_provider(entry.name)
            for option, text in serialise(provider, entry.options).items():
                if option_facts(provider, option).get("x-limits") == "arena" and 0 < int(text) < weights:
                    detail = (
                        f'{option} allows {format_size(int(text))}, and the weights of model "{model.spec.name}" take '
                        f"{format_size(weights)} of it. ONNX Runtime reserves them whatever the limit is, and then "
                        "keeps no limit. Raise it above the weights, or take them out of it: memory: "
                        "{device_allocator_for_initializers: true}."
                    )
                    yield Finding(at=(*entry.at, "options", option), detail=detail, model=model.spec.name)
