"""What it catches: more sessions on a provider's device than it can hold.

Why: Vitis AI's NPU takes one session; the second crashes the process without a message. A run keeps the sessions of all
models of its jobs open, with --job those of these jobs alone; of sessions: with use: first, it opens one.

Example: two models with providers: [VitisAI, CPU], or sessions with count: 2 on it.

How to fix: use the provider for one model only, or run jobs one after the other: apply --job NAME, or two manifests.
"""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.providers.catalogue import find_provider
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="crowded-device", summary="Too many sessions on a device")


def check(deployment: "Deployment") -> Iterator[Finding]:
    spec, before = deployment.spec, Counter[str]()
    run = {model.name for job in deployment.jobs for model in spec.models_of(job.spec)}
    for model in (one for one in spec.models if one.name in run):
        own = Counter[str]()
        for session in model.sessions:
            for provider in filter(None, (find_provider(entry.name) for entry in spec.chain_of(session))):
                limit, earlier = provider.sessions_per_device, own[provider.name] if model.use == "all" else 0
                own[provider.name] = max(own[provider.name], earlier + session.count)
                number = before[provider.name] + earlier + session.count
                if limit is not None and number > limit:
                    detail = (
                        f"{provider.name} takes {limit} session at a time on its device, and this is number {number}. "
                        "Use it for one model only."
                    )
                    yield Finding(at=(*session.at, "providers"), detail=detail, model=model.name)
        before += own
