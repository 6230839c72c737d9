"""Which jobs start over: because they are told to, or because what their results depend on has changed."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from ortdeploy.manifest.job_order import with_readers

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment, ResolvedJob


def startable(deployment: "Deployment") -> frozenset[str]:
    """Return the jobs that --new-run starts over: their result is this ledger's, and unfinished or of another origin.

    Or shards have made it, and have not finished, or the ledger that knows it is lost. New files alone do not change a
    result: they run after what is there, as always.
    """
    return frozenset(job.spec.name for job in deployment.jobs if job.readable and _is_startable(job))


def _is_startable(job: "ResolvedJob") -> bool:
    output = job.output
    if output.shards == "open" or (output.shards is not None and output.state == "foreign"):
        return True
    return output.state == "part" or (output.state == "finished" and not job.is_current)


def rerun_by_themselves(deployment: "Deployment") -> frozenset[str]:
    """Return the jobs that start over by themselves: what their results depend on has changed, or their rows have.

    The rows have changed if the job that makes them starts over.
    """
    wanted = {job.spec.name for job in deployment.jobs if job.spec.output.on_upgrade == "rerun" and job.changed}
    return startable(deployment) & (wanted | {job.spec.name for job in deployment.jobs if job.input.restarted})


def starting_with_readers(
    stale: Collection[str], deployment: "Deployment", jobs: Collection[str] | None
) -> frozenset[str]:
    """Return jobs that start over with those that have read their rows, which start over too."""
    read = with_readers(stale, deployment.spec.jobs)
    begun = {job.spec.name for job in deployment.jobs if job.output.state in {"part", "finished"}}
    return frozenset(stale) | {name for name in read & begun if jobs is None or name in jobs}
