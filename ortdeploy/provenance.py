"""What a part was made from: digests, sessions and versions, the same for every part that is made from the same."""

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ortdeploy.opening import OpenedModel
from ortdeploy.plan import LoadAdapter, OpenSession, Plan, RunJob, keep_jobs
from ortdeploy.plan_file import encode
from ortdeploy.version import versions


def plan_digest(plan: Plan, job: str) -> str:
    """Return the SHA-256 of what a plan says of one job; how far the job is does not change it."""
    steps = [
        replace(step, files=(), rows=None, first_row=0, committed_rows=0, replaces=None, retry=False, memory=None)
        if isinstance(step, RunJob)
        else step
        for step in keep_jobs(plan, [job]).steps
    ]
    return hashlib.sha256(json.dumps([encode(step) for step in steps], sort_keys=True).encode()).hexdigest()


def provenance(plan: Plan, step: RunJob, opened: OpenedModel) -> Mapping[str, Any]:
    """Return what this run's parts of a job are made from, as JSON has it."""
    models = [one for one in plan.steps if isinstance(one, OpenSession) and one.session in step.sessions]
    adapters = {
        one.adapter: one.sha256
        for one in plan.steps
        if isinstance(one, LoadAdapter) and one.session in step.sessions and one.adapter in step.adapter_names
    }
    return {
        "deployment": plan.deployment,
        "job": step.job,
        "plan": plan_digest(plan, step.job),
        "manifest": next(fact.value for fact in plan.facts if fact.kind == "manifest"),
        "model": {"name": step.model, "sha256": step.identity["model"]},
        **({"components": {one.model: one.sha256 for one in models}} if step.pipeline else {}),
        "adapters": adapters,
        "sessions": {
            one.candidate.name: {
                "providers": [provider.name for provider in one.candidate.providers],
                "placement": dict(one.session.placement),
            }
            for one in opened.sessions
        },
        "device": {"host": platform.node(), "architecture": platform.machine()},
        "versions": versions(),
    }
