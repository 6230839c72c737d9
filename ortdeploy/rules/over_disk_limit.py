"""What it catches: a job whose output takes more disk than its limits allow, or than is free at its place.

Why: for .npy, .npz and Arrow, the graph tells how large a row of the output is. So it is known before the run that the
disk will be full. Every committed part would stay, but the job could not end.

Example:

    limits: {disk: 1GiB}            # for ten million rows of 256 floats

How to fix: choose another place or fewer columns, make room, or raise the limit.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Certainty
from ortdeploy.rules.protocol import Finding, Rule
from ortdeploy.units import format_size

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="over-disk-limit", summary="Not enough disk for the output", certainty=Certainty.MACHINE)


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        forecast = deployment.preflight.memory.get(job.spec.name)
        if forecast is None or forecast.disk is None:
            continue
        limit, free = job.spec.limits.disk, job.output.free_bytes
        if limit is not None and forecast.disk > limit:
            bound = f"its limit is {format_size(limit)}"
        elif free is not None and forecast.disk > free:
            bound = f"{format_size(free)} are free where {job.spec.output.path} goes"
        else:
            continue
        detail = (
            f'The rows of job "{job.spec.name}" take {format_size(forecast.disk)}, and {bound}. '
            "Write fewer columns, choose another place, or make room."
        )
        yield Finding(at=(*job.spec.at, "output"), detail=detail, key=True, job=job.spec.name)
