"""The thread layout that all processes of a plan keep: what the first of them finds, or remembers, to be the best.

Layouts may differ in the last digits of results, and another process would find another one to be the best.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from ortdeploy.diagnostics import OrtdeployError, RefusedError
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.plan.part_table import Shard
from ortdeploy.plan.steps import Plan, RunJob
from ortdeploy.running.shards.alike import facts_of_this_worker
from ortdeploy.running.shards.commit_log import ClosedError, CommitLog
from ortdeploy.running.shards.shard_run import begun
from ortdeploy.running.shards.told import Told

KEPT = "layout.json"
"""The file in a plan's folder with the name of the layout."""


def kept_layout(
    plan: Plan, shard: Shard | Told, jobs: Sequence[RunJob], ledger: Ledger, find: Callable[[], str | None]
) -> str | None:
    """Return the layout of a session for its `jobs`; None if it is opened as the plan says.

    If none is kept yet, `find` finds one. Raises RefusedError if parts of the jobs were begun with different ones,
    OrtdeployError, OSError.
    """
    all_decisions = list(_begun(plan, shard, jobs, ledger))
    if not all_decisions:
        return None
    kept = next(filter(None, (one.settled(KEPT) for one in all_decisions)), None) or {"layout": find()}
    names = set()
    for one in all_decisions:
        with suppress(ClosedError):  # others have finished the job since
            kept = one.settle(KEPT, kept)
            names.add(kept.get("layout"))
    if len(names) > 1:
        raise RefusedError(
            f"jobs that use this model were begun with different layouts of threads, of which {one.shown(KEPT)} "
            "names one. Run them one at a time, with --job"
        )
    return next(iter(names), None)


def _begun(plan: Plan, shard: Shard | Told, jobs: Sequence[RunJob], ledger: Ledger) -> Iterator[CommitLog]:
    """Begin the parts of the jobs; a job that cannot begin, or whose parts are all made, says so when it runs."""
    for step in jobs:
        with suppress(OrtdeployError, OSError):
            yield begun(plan, step, ledger, shard, facts_of_this_worker(plan, step))
