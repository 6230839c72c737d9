"""What it catches: a job that is predicted to take more memory than its limits allow, or than the machine has.

Why: ONNX Runtime allocates while it runs. A job that needs more memory than there is ends in the kernel's out-of-memory
killer, or slows the whole device down. The prediction counts the process, the weights of every session (packed weights
twice while a session is opened), the activations at the batch's shapes with ONNX Runtime's arena and memory pattern,
and the rows on their way. If the prediction was not tested with the version of ONNX Runtime, the finding says that it
is assumed.

Example:

    limits: {memory: 256MiB}
    batch: {size: 512}              # whose activations take 800 MiB

How to fix: the message names the largest batch and number of sessions that fit, if any do. Otherwise write a smaller
batch for the items of an each step, or memory: lean, or raise the limit.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Certainty
from ortdeploy.rules.protocol import Finding, Rule
from ortdeploy.units import format_size
from ortdeploy.versions import certainty_with

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment, ResolvedJob
    from ortdeploy.facts.preflight import MemoryForecast
    from ortdeploy.manifest.pipelines import StepOfPipeline

RULE = Rule(id="over-memory-limit", summary="Not enough memory for the job", certainty=Certainty.MACHINE)


def check(deployment: "Deployment") -> Iterator[Finding]:
    machine, certainty = deployment.facts.machine, certainty_with(deployment.facts.runtime.version)
    for job in deployment.jobs:
        forecast = deployment.preflight.memory.get(job.spec.name)
        if forecast is None:
            continue
        limit = forecast.limit
        if limit is not None and forecast.total > limit:
            bound = f"its limit is {format_size(limit)}"
            at = job.spec.limits.at["memory"]
        elif machine is not None and machine.memory_bytes is not None and forecast.total > machine.memory_bytes:
            bound = f"the machine, or the control group of this process, has {format_size(machine.memory_bytes)}"
            at = (*job.spec.at, "model")
        else:
            continue
        parts = ", ".join(f"{part.what} {format_size(part.size)}" for part in forecast.parts)
        detail = (
            f'Job "{job.spec.name}" is predicted to take {format_size(forecast.total)} ({parts}), and {bound}. '
            f"{_advice(job, forecast)}"
        )
        yield Finding(at=at, detail=detail, key=True, model=job.model.spec.name, job=job.spec.name, certainty=certainty)


def _each_steps(job: "ResolvedJob") -> Iterator["StepOfPipeline"]:
    """Yield the steps that run items of a row together."""
    steps = list(job.pipeline.spec.steps) if job.pipeline else []
    while steps:
        step = steps.pop()
        steps += step.steps
        if step.kind == "each":
            yield step


def _advice(job: "ResolvedJob", forecast: "MemoryForecast") -> str:
    process = next((part.size for part in forecast.parts if part.what == "process"), 0)
    if forecast.limit is not None and process >= forecast.limit:
        return f"Python with ONNX Runtime alone takes {format_size(process)}; raise the limit above that."
    smaller = [] if forecast.fitting is None else [f"batch: {{size: {forecast.fitting}}}"]
    smaller += [] if forecast.count is None else [f"count: {forecast.count} for its sessions"]
    if smaller:
        return f"{' fits, and so does '.join(smaller)}{' fits' if len(smaller) == 1 else ''}."
    items = max((step.batch for step in _each_steps(job)), default=1)
    if items > 1:
        return f"A step each runs up to {items} items of a row at a time. Write a smaller batch: for it."
    if job.model.spec.sessions_at_once > 1:
        return "Open fewer sessions, of fewer callers, or raise the limit."
    if job.model.spec.memory.profile != "lean":
        return "No smaller batch fits. Write memory: lean for the model, or raise the limit."
    return "No smaller batch fits. Take a smaller model, or raise the limit."
