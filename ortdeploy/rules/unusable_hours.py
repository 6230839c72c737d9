"""What it catches: hours: of a job that begin and end at the same minute, or that name an unknown time zone.

Why: such a job would never run, or would run at another time of the day than was meant.

Example:

    hours: {from: "22:00", to: "06:00", zone: Europe/Berln}

How to fix: correct the time or the zone. If the system has no time zone database (Windows, small containers), install
the package tzdata, or leave the zone out to use the machine's own.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Certainty, did_you_mean
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="unusable-hours", summary="Hours in which a job never runs")


def check(spec: "Spec") -> Iterator[Finding]:
    for job in spec.jobs:
        hours = job.timing.hours
        if hours is None:
            continue
        if hours.begin == hours.end:
            detail = "The hours end when they begin. Leave hours: out for a job that may always run."
            yield Finding(at=(*job.at, "hours"), detail=detail, job=job.name)
        if hours.zone is not None and not _is_known(hours.zone):
            from zoneinfo import available_timezones  # noqa: PLC0415  as below

            nearest = did_you_mean(hours.zone, sorted(available_timezones()))
            detail = f'There is no time zone "{hours.zone}" here. {nearest}'
            at = (*job.at, "hours", "zone")
            yield Finding(at=at, detail=detail, job=job.name, certainty=Certainty.MACHINE)


def _is_known(zone: str) -> bool:
    from zoneinfo import ZoneInfo  # noqa: PLC0415  reads how Python was built; few jobs name a zone

    try:
        ZoneInfo(zone)
    except (OSError, KeyError, ValueError):  # no file, no such zone, or no name of one
        return False
    return True
