"""What it catches: callers: of a session whose provider runs one batch at a time.

Why: DirectML crashes if two threads run the same session. XNNPACK and WebGPU make the second caller wait, so callers
gain nothing.

Example:

    sessions: [{name: gpu, providers: [Dml, CPU], callers: 2}]

How to fix: open more sessions with count: instead of callers:, or leave both out.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.providers.catalogue import find_provider
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="concurrent-runs", summary="The provider runs one batch at a time")


def check(spec: "Spec") -> Iterator[Finding]:
    for model in spec.models:
        for session in (session for session in model.sessions if session.callers > 1):
            providers = filter(None, (find_provider(entry.name) for entry in spec.chain_of(session)))
            single = [provider.short for provider in providers if not provider.concurrent_runs]
            if single:
                detail = (
                    f"A session of {single[0]} runs one batch at a time, and this one has {session.callers} callers. "
                    f"Write count: {session.callers} instead of callers: {session.callers}, or leave both out."
                )
                yield Finding(at=(*session.at, "callers"), detail=detail, key=True, model=model.name)
