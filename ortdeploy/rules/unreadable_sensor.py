"""What it catches: pause: with a temperature or a battery for which this machine shows no sensor.

Why: the job would never pause for it. Temperatures and batteries are read from /sys/class on Linux; virtual machines
and containers often have none.

Example: pause: {above: {temperature: 80C}} in a virtual machine.

How to fix: nothing, if the same manifest also runs on machines that have the sensor; otherwise leave it out.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Certainty, Severity
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(
    id="unreadable-sensor",
    summary="Sensor cannot be read here",
    severity=Severity.WARNING,
    certainty=Certainty.MACHINE,
)

_PLACES = {"temperature": ("above", "temperature"), "battery": ("below", "battery")}


def check(deployment: "Deployment") -> Iterator[Finding]:
    machine = deployment.facts.machine
    if machine is None or machine.sensors is None:
        return
    for job in deployment.jobs:
        pause = job.spec.timing.pause
        for sensor in pause.sensors if pause is not None else ():
            if sensor not in machine.sensors:
                detail = f"This machine shows no {sensor}, so the job will never pause for it."
                yield Finding(at=(*job.spec.at, "pause", *_PLACES[sensor]), detail=detail, job=job.spec.name)
