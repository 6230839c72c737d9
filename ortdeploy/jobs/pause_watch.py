"""Watches the conditions under which a job pauses: hours, running time, temperature, battery and free disk."""

import time
from collections.abc import Callable, Iterator
from datetime import datetime, tzinfo
from pathlib import Path

from msgspec import Struct, field

from ortdeploy.files.disk import free_bytes
from ortdeploy.plan.timing import ALWAYS, Hours, JobTiming, PauseLimits
from ortdeploy.process.sensors import Battery, Temperature, read_battery, read_temperature
from ortdeploy.units import format_size

SECONDS_BETWEEN = 1.0
"""Seconds between two readings of sensors, at least."""

_MARGIN = 5
"""Degrees, or percent, from the limit at which a pause ends."""

_HOT, _LOW = "temperature", "battery"


class Senses(Struct, frozen=True, kw_only=True):
    """What a watch measures: clocks, sensors, and the free bytes of a folder's file system."""

    monotonic: Callable[[], float] = time.monotonic
    now: Callable[[tzinfo | None], datetime] = datetime.now
    temperature: Callable[[], Temperature | None] = read_temperature
    battery: Callable[[], Battery | None] = read_battery
    free_bytes: Callable[[Path], int | None] = free_bytes


class PauseWatch(Struct):
    """Decides whether one job must pause. Once it must, the answer stays the same until the next run.

    `folder` is the job's output. `paused_for` is why the run before paused: after heat or an empty battery, the job
    continues only with a margin to the limit. `began` is when the job began, by the monotonic clock; None: now.
    """

    timing: JobTiming
    folder: Path
    paused_for: str = ""
    senses: Senses = field(default_factory=Senses)
    reason: str | None = None
    began: float | None = None
    _looked: float = float("-inf")

    def __post_init__(self) -> None:
        """Start the clock of the job, if it does not run yet."""
        self.began = self.senses.monotonic() if self.began is None else self.began

    def __call__(self) -> bool:
        """Return whether the job must pause."""
        if self.timing == ALWAYS or self.reason is not None:
            return self.reason is not None
        now = self.senses.monotonic()
        if now - self._looked >= SECONDS_BETWEEN:
            self._looked = now
            self.reason = next(self._reasons(now - (self.began or 0.0)), None)
        return self.reason is not None

    def _reasons(self, seconds: float) -> Iterator[str]:
        timing = self.timing
        if timing.hours is not None and not self._is_within(timing.hours):
            yield f"it runs from {timing.hours.text}"
        if timing.until is not None and seconds >= timing.until:
            yield f"it has run for {timing.until:g} s, as until: says"
        if timing.pause is not None:
            yield from self._limits(timing.pause)

    def _is_within(self, hours: Hours) -> bool:
        now = self.senses.now(_zone(hours.zone) if hours.zone else None)
        return hours.hold(now.hour * 60 + now.minute)

    def _limits(self, limits: PauseLimits) -> Iterator[str]:
        if limits.temperature is not None:
            most = limits.temperature - (_MARGIN if self.paused_for.startswith(_HOT) else 0)
            found = self.senses.temperature()
            if found is not None and found.celsius > most:
                yield f"{_HOT} {found.celsius:.0f} °C ({found.sensor}), it runs up to {most:g} °C"
        if limits.battery is not None:
            least = limits.battery + (_MARGIN if self.paused_for.startswith(_LOW) else 0)
            charge = self.senses.battery()
            if charge is not None and charge.discharging and charge.percent < least:
                yield f"{_LOW} {charge.percent:.0f} % and discharging, it runs from {least:g} %"
        if limits.free_disk is not None:
            free = self.senses.free_bytes(self.folder)
            if free is not None and free < limits.free_disk:
                yield f"free disk {format_size(free)}, it runs from {format_size(limits.free_disk)}"


def _zone(name: str) -> tzinfo:
    from zoneinfo import ZoneInfo  # noqa: PLC0415  reads how Python was built; few jobs name a zone

    return ZoneInfo(name)
