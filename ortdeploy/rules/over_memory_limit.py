"""What it catches: a job that takes more memory than its limits allow, or than the machine has.

Why: ONNX Runtime allocates while it runs. A job that needs more memory than there is ends in the kernel's out-of-memory
killer, or slows the whole device down. A job with a limit is measured before it runs: its first rows run in a process
that is held to the limit, with ONNX Runtime's arena, and if that takes too much, without. What was measured is
remembered. Before that, a plan refuses only what the process and the weights alone exceed.

Example:

    limits: {memory: 256MiB}
    batch: {size: 512}              # whose activations take 800 MiB

How to fix: the message names a batch that fits, if one does. Otherwise write a smaller batch for the items of an each
step, or open fewer sessions, or raise the limit.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Certainty
from ortdeploy.manifest.pipelines import walk
from ortdeploy.rules.protocol import Finding, Rule
from ortdeploy.units import format_size

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment, ResolvedJob
    from ortdeploy.facts.memory import MemoryForecast

RULE = Rule(id="over-memory-limit", summary="Not enough memory for the job", certainty=Certainty.MACHINE)


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        forecast = deployment.preflight.memory.get(job.spec.name)
        if forecast is None or not forecast.is_too_much:
            continue
        if forecast.bound == forecast.limit:
            bound = f"its limit is {_limit_in_words(forecast.bound or 0)}"
            at = job.spec.limits.at["memory"]
        else:
            bound = f"the machine, or the control group of this process, has {format_size(forecast.bound or 0)}"
            at = (*job.spec.at, "model")
        detail = f'Job "{job.spec.name}" {forecast.excess}, and {bound}. {_advice(job, forecast)}'
        yield Finding(at=at, detail=detail, key=True, model=job.model.spec.name, job=job.spec.name)


def _limit_in_words(limit: int) -> str:
    """Return a limit as a size; one that no process keeps is most likely a number whose unit is missing."""
    few = 1_000_000
    return format_size(limit) if limit >= few else f"{limit:,} bytes, which is how a number without a unit counts"


def _advice(job: "ResolvedJob", forecast: "MemoryForecast") -> str:
    if forecast.unmeasured is not None:
        return "Take a smaller model, or raise the limit above that."
    if forecast.fitting is not None:
        return f"batch: {{size: {forecast.fitting}}} fits."
    steps = walk(job.pipeline.spec.steps) if job.pipeline else ()
    items = max((step.batch for step in steps if step.kind == "each"), default=1)
    if items > 1:
        return f"A step each runs up to {items} items of a row at a time. Write a smaller batch: for it."
    if job.model.spec.sessions_at_once > 1:
        return "Open fewer sessions, of fewer callers, or raise the limit."
    return "No smaller batch fits. Take a smaller model, or raise the limit."
