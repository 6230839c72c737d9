"""The thread layout that all processes of a plan keep for a job: the one with which the first of them begins.

Layouts may differ in the last digits of results, and another process may measure another one to be the best.
"""

from collections.abc import Callable
from contextlib import suppress

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.jobs.environment_check import facts_of_this_worker
from ortdeploy.jobs.shard_run import begun
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.parts.assigned_parts import AssignedParts
from ortdeploy.parts.commit_log import ClosedError, CommitLog
from ortdeploy.plan.part_table import Shard
from ortdeploy.plan.steps import Plan, RunJob

KEPT = "layout.json"
"""The file in a plan's folder with the name of the layout."""


def kept_layout(
    plan: Plan, shard: Shard | AssignedParts, job: RunJob, ledger: Ledger, find: Callable[[], str | None]
) -> str | None:
    """Return the layout of a job's parts; None if its sessions are opened as the plan says.

    If none is kept yet, `find` finds one. Raises OrtdeployError, OSError.
    """
    decisions = _begun(plan, shard, job, ledger)
    if decisions is None:
        return None
    kept = decisions.settled(KEPT) or {"layout": find()}
    with suppress(ClosedError):  # others have finished the job since
        kept = decisions.settle(KEPT, kept)
    name = kept.get("layout")
    if not isinstance(name, str | None):
        raise OrtdeployError(f"{decisions.shown(KEPT)} is damaged. Restore it from a copy")
    return name


def _begun(plan: Plan, shard: Shard | AssignedParts, job: RunJob, ledger: Ledger) -> CommitLog | None:
    """Begin the parts of a job; one that cannot begin, or whose parts are all made, says so when it runs."""
    with suppress(OrtdeployError, OSError):
        return begun(plan, job, ledger, shard, facts_of_this_worker(plan, job))
    return None
