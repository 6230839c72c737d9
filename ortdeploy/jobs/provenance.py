"""The origin of a part: the digests, sessions and versions that it was made from."""

import platform
from collections.abc import Mapping
from typing import Any

from ortdeploy.jobs.job_context import JobContext
from ortdeploy.plan.selection import openings_of
from ortdeploy.plan.steps import LoadAdapter
from ortdeploy.versions import versions


def provenance(context: JobContext) -> Mapping[str, Any]:
    """Return the origin of this run's parts of a job, as JSON."""
    plan, step = context.plan, context.step
    models = openings_of(plan, step)
    adapters = {
        one.adapter: one.sha256
        for one in plan.steps
        if isinstance(one, LoadAdapter) and one.session in step.sessions and one.adapter in step.adapter_names
    }
    return {
        "deployment": plan.deployment,
        "job": step.job,
        "plan": context.plan_digest,
        **({"bundle": plan.bundle} if plan.bundle is not None else {}),
        "manifest": next(fact.value for fact in plan.facts if fact.kind == "manifest"),
        "model": {"name": step.model, "sha256": step.identity["model"]},
        **({"components": {one.model: one.sha256 for one in models}} if step.pipeline else {}),
        "adapters": adapters,
        "sessions": {
            one.candidate.name: {
                "providers": [provider.name for provider in one.candidate.providers],
                "placement": dict(one.session.placement),
            }
            for one in context.opened.sessions
        },
        "device": {"host": platform.node(), "architecture": platform.machine()},
        "versions": versions(),
    }
