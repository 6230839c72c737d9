"""Which jobs of a manifest read the rows of others, and the order in which that lets them run.

A name that is no job's, and a job in a circle, are for the rules; here they count as read by nobody.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import JobSpec


def in_order(jobs: "Sequence[JobSpec]") -> "tuple[JobSpec, ...]":
    """Return jobs, each after the one that it reads; those that are free to run stand in the manifest's order."""
    names = {job.name for job in jobs}
    ordered: list[JobSpec] = []
    left = list(jobs)
    while left:
        through = {job.name for job in ordered}
        free = (job for job in left if job.input.job not in names - through)
        following = next(free, left[0])  # a circle, which is refused
        ordered.append(following)
        left.remove(following)
    return tuple(ordered)


def readers_of(name: str, jobs: "Sequence[JobSpec]") -> tuple[str, ...]:
    """Return the jobs that read a job's rows."""
    return tuple(job.name for job in jobs if job.input.job == name)


def with_readers(names: Collection[str], jobs: "Sequence[JobSpec]") -> frozenset[str]:
    """Return jobs with those that read them, and those that read these, to the end."""
    found = set(names)
    for job in in_order(jobs):
        if job.input.job in found:
            found.add(job.name)
    return frozenset(found)


def jobs_before(name: str, jobs: "Sequence[JobSpec]") -> tuple[str, ...]:
    """Return the job that a job reads, with the one that this reads and so on, in the order in which they run."""
    reads = {job.name: job.input.job for job in jobs}
    found: list[str] = []
    while (before := reads.get(name)) is not None and before not in found:
        found.insert(0, before)
        name = before
    return tuple(found)


def circle_of(name: str, jobs: "Sequence[JobSpec]") -> tuple[str, ...]:
    """Return the jobs of the circle that a job stands in, from itself on, each read by the one before; else nothing."""
    reads = {job.name: job.input.job for job in jobs}
    way = [name]
    while (following := reads.get(way[-1])) is not None and following not in way:
        way.append(following)
    return tuple(way) if following == name else ()
