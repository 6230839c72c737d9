"""What the report says of the sessions that ran a job, and of the memory that they took."""

from collections.abc import Mapping, Sequence
from typing import Any

from ortdeploy.plan.steps import OpenSession, Plan, RunJob
from ortdeploy.providers.secrets import masked_options
from ortdeploy.reports.report import durations
from ortdeploy.sessions.opening import OpenedModel
from ortdeploy.streaming.member import Member


def ran_on(
    plan: Plan,
    step: RunJob,
    members: Sequence[Member],
    opened: OpenedModel,
    memory: Mapping[str, Mapping[str, int | None]],
) -> dict[str, Any]:
    """Return the report's entries on sessions and memory, as JSON."""
    first = members[0].opened
    return {
        **({"components": _components(plan, members)} if step.pipeline else {}),
        "session": first.candidate.name,
        "sessions_passed_over": {one.session: one.reason for one in opened.skipped},
        "layout": opened.layout,
        "providers": [provider.name for provider in first.candidate.providers],
        "placement": dict(first.session.placement),
        "sessions": [_session(member) for member in members],
        "memory": {name: dict(taken) for name, taken in memory.items()},
    }


def _components(plan: Plan, members: Sequence[Member]) -> dict[str, Any]:
    """Return for each model of a pipeline the providers that were asked for, and where its nodes are."""
    known = {one.session: one for one in plan.steps if isinstance(one, OpenSession)}
    from ortdeploy.pipelines.component import components_of  # noqa: PLC0415  few jobs run a pipeline

    return {
        component.model: {
            "path": known[component.model].path,
            "sha256": known[component.model].sha256,
            "session": component.opened.candidate.name,
            "providers": [
                {"provider": provider.name, "options": masked_options(provider.name, provider.options)}
                for provider in component.opened.candidate.providers
            ],
            "placement": dict(component.opened.session.placement),
        }
        for component in components_of(members[0].opened.session)
    }


def _session(member: Member) -> dict[str, Any]:
    """Return the entry on one session of the job; `failure` is why it stopped taking batches."""
    opened = member.opened
    return {
        "session": opened.candidate.name,
        "instance": opened.instance,
        "providers": [provider.name for provider in opened.candidate.providers],
        "placement": dict(opened.session.placement),
        "cache": opened.session.cache,
        "batches": member.rows.runs.run_times.count,
        "batch_size": member.rows.batch_size,
        "rows": member.done,
        "session_run": durations(member.rows.runs.run_times),
        "failure": member.failure,
    }
