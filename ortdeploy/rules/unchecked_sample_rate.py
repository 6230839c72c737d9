"""What it catches: recordings whose sample rate nothing checks.

Why: a model does not say how many samples a second it was trained on, and answers for any number. The first file with
another rate would give wrong rows without an error. Nothing is resampled unless a step says so.

Example: input: {path: calls/*.wav} for a model of speech at 16,000 samples a second.

How to fix: write the rate that the model was trained on: input: {path: calls/*.wav, rate: 16000}. Two cases need no
declaration: a model that is fed the column rate, and recordings that are resampled with prepare: {x: [{resample:
16000}]}.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Severity
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="unchecked-sample-rate", summary="Sample rate is not checked", severity=Severity.WARNING)


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        rates = job.input.rates
        if len(rates) == 1 and "rate" not in job.spec.input.settings and not (job.feeds("rate") or job.resamples):
            rate = next(iter(rates))
            detail = (
                f"The recordings have {rate:,} samples a second, and nothing says how many the model wants. If it "
                f"wants as many, write rate: {rate} into the input; files of another rate are refused from then on."
            )
            yield Finding(at=job.spec.input.source_at, detail=detail, job=job.spec.name, model=job.spec.model)
