"""What it catches: an `input: {job: …}` that cannot be read, or that has keys for files beside it.

- It names no job of the manifest, several jobs, or the job itself.
- Jobs read each other in a circle.
- Rows of the job that is read may run again, and its files do not say which row is which.

Why: a job reads the rows that another job commits. In a circle, no job could begin. The rows of two jobs cannot be
matched with each other. The other job decides which rows there are, and in which format, so keys for files have no
effect here. Rows that run again are written into files beside those that were read, and replace those of equal number.

Example:

    jobs:
      a: {model: m, input: {job: b}, output: {path: out/a}}
      b: {model: m, input: {job: a}, output: {path: out/b}}

How to fix: name one other job; the first job of such a chain reads files. If two models take the same rows, let one job
run both in a pipeline.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import did_you_mean
from ortdeploy.manifest.job_order import circle_of, jobs_before
from ortdeploy.manifest.spec import ROW
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import JobSpec, Spec

RULE = Rule(id="unusable-job-input", summary="Rows of that job cannot be read")

_OF_FILES = (
    "path", "format", "dtype", "shape", "delimiter", "lines_per_record",
    "on_empty", "on_change", "on_remove", "stable_for",
)  # fmt: skip


def check(spec: "Spec") -> Iterator[Finding]:
    for job in (job for job in spec.jobs if job.input.jobs):
        why_not = _why_not(job, spec)
        if why_not is not None:
            yield Finding(at=(*job.input.at, "job"), detail=why_not, job=job.name)
        for key in (key for key in (*_OF_FILES, *job.input.settings) if (*job.input.at, key) in spec.document.spans):
            detail = f'Job "{job.name}" reads the rows of a job, and {key}: is for files. Remove one of the two.'
            yield Finding(at=(*job.input.at, key), detail=detail, key=True, job=job.name)


def _why_not(job: "JobSpec", spec: "Spec") -> str | None:
    if len(job.input.jobs) != 1:
        return (
            f'Job "{job.name}" names {len(job.input.jobs)} jobs. A job reads one, because rows of two jobs '
            "cannot be matched with each other. Let one job run a pipeline with both models, or read one after the "
            "other in two jobs."
        )
    if job.input.job == job.name:
        return f'Job "{job.name}" reads its own rows. Name the job that makes them, or the files with path:.'
    others = [one.name for one in spec.jobs if one is not job]
    if job.input.job not in others:
        return f'Job "{job.name}" reads the job "{job.input.job}". {did_you_mean(str(job.input.job), others)}'
    first = next(one for one in spec.jobs if one.name == job.input.job)
    circle = circle_of(job.name, spec.jobs)
    if circle:
        way = " reads ".join((*circle, job.name))
        return f"Jobs read each other in a circle: {way}. One of them must read files."
    return _why_no_rerun(job, first, spec)


def _why_no_rerun(job: "JobSpec", first: "JobSpec", spec: "Spec") -> str | None:
    """Say why rows of the job that is read may not run again; None if they may, or never do."""
    before = {first.name, *jobs_before(first.name, spec.jobs)}
    again = [one.name for one in spec.jobs if one.name in before and one.input.arrivals.on_change == "rerun"]
    if not again:
        return None
    why = f'Rows of changed files run again in job "{again[0]}" (on_change: rerun), and job "{first.name}"'
    if first.output.explode:
        return (
            f'{why} writes several lines for a row (explode). Which of them job "{job.name}" has read is not kept. '
            "Write on_change: append, or do not explode."
        )
    if not first.output.removable and ROW not in first.input.key:
        return (
            f'{why} writes their new results into files beside the old ones, because job "{job.name}" reads these. '
            "Nothing in the files would say which row is which. Add row to its key:, or write on_change: append."
        )
    return None
