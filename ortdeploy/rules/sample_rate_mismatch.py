"""What it catches: recordings with another sample rate than the input declares, or with several rates if it declares
none.

Why: a model hears samples, not seconds. To a model for 16,000 samples a second, speech of 8,000 sounds twice as fast,
and the model answers without an error. Without a declaration, nobody can say which of several rates is right. Only a
model that is fed the column rate, or a step that resamples, can take them all.

Example: input: {path: calls/*.wav, rate: 16000}, but calls/7.wav has 8,000 samples a second.

How to fix: resample them with prepare: {x: [{resample: 16000}]} and no rate, leave them out, or declare the rate that
the model was trained on. Files of another rate are allowed if errors: {max_failed: …} allows for as many rows.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ortdeploy.rules.protocol import Finding, Rule
from ortdeploy.units import allowed_count

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment, ResolvedJob

RULE = Rule(id="sample-rate-mismatch", summary="Recordings of another sample rate")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        detail = _detail(job)
        if detail is not None:
            at = (*job.spec.input.at, "path" if "rate" not in job.spec.input.settings else "rate")
            yield Finding(at=at, detail=detail, job=job.spec.name, model=job.spec.model)


def _detail(job: "ResolvedJob") -> str | None:
    rates, declared = job.input.rates, job.spec.input.settings.get("rate")
    if declared is None:
        if len(rates) < 2 or (job.feeds("rate") or job.resamples):  # noqa: PLR2004  one rate is no contradiction
            return None
        found = ", ".join(f"{rate:,} Hz ({_files(job, rows)})" for rate, rows in sorted(rates.items()))
        wanted = f"rate: {max(rates)}"
        return f"The recordings have several sample rates: {found}. Write the one that the model wants: {wanted}."
    others = sorted(row for rate, rows in rates.items() if rate != declared for row in rows)
    allowed = allowed_count(
        job.spec.max_failed, job.input.first_row + len(job.input.states) + len(job.input.rerun)
    )  # a row is a file
    if len(others) <= allowed:
        return None
    first = next(rate for rate, rows in rates.items() if others[0] in rows)
    return (
        f"{len(others)} of {len(job.input.states)} recordings do not have {declared:,} samples a second. Row "
        f"{job.input.first_row + others[0]} ({_files(job, others[:1])}) has {first:,}. Such rows fail, and "
        f"max_failed is {job.spec.max_failed}. Write {{resample: {declared}}} under prepare: in its place."
    )


def _files(job: "ResolvedJob", rows: Sequence[int]) -> str:
    """Return the first of some files by name, and how many more there are."""
    more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    return f"{(*job.input.states, *job.input.rerun)[rows[0]].path}{more}"
