"""Compares the providers to which nodes were really assigned with what the plan allows, before the first row.

ONNX Runtime lists providers that took no node. If it leaves nodes to the CPU, at most a line in its log says so.
"""

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.plan.steps import OpenSession, PlannedSession
from ortdeploy.providers.catalogue import CPU
from ortdeploy.runtime.protocol import Session
from ortdeploy.units import allowed_count

_SHOWN = 8


def check_placement(step: OpenSession, candidate: PlannedSession, session: Session) -> str | None:
    """Return a remark when nodes are on the CPU that need not be. Raises OrtdeployError if the plan forbids it."""
    asked = [provider.name for provider in candidate.providers if provider.name != CPU]
    if not asked or step.cpu_fallback == "allow":
        return None
    idle = [name for name in asked if not session.placement.get(name)]
    if idle:
        raise OrtdeployError(
            f'{" and ".join(idle)} took no node of model "{step.model}"; they are on {_placement(session)}. '
            "Its log, the model's shapes and types, and the provider options tell why; "
            "cpu_fallback: allow accepts it"
        )
    on_cpu, total = session.placement.get(CPU, 0), sum(session.placement.values())
    limit = _limit(step.cpu_fallback, total)
    operators = ", ".join(session.cpu_operators[:_SHOWN]) + ("…" if len(session.cpu_operators) > _SHOWN else "")
    found = f'{on_cpu} of {total} nodes of model "{step.model}" are on the CPU provider ({operators})'
    if limit is not None and on_cpu > limit:
        raise OrtdeployError(f"{found}; cpu_fallback: {_shown(step.cpu_fallback)} allows {limit}")
    return found if on_cpu and step.cpu_fallback == "warn" else None


def _limit(policy: str | int, nodes: int) -> int | None:
    if policy == "forbid":
        return 0
    return None if policy == "warn" else allowed_count(policy, nodes)


def _shown(policy: str | int) -> str:
    return "forbid" if policy == "forbid" else f"{{max_nodes: {policy}}}"


def _placement(session: Session) -> str:
    return ", ".join(f"{name} ({count})" for name, count in session.placement.items()) or "no provider"
