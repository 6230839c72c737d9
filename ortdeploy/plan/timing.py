"""When a job may run: hours of the day, running time, and conditions of the machine for a pause."""

from msgspec import Struct

from ortdeploy.units import format_size


class Hours(Struct, frozen=True, kw_only=True):
    """A time of the day from `begin` to `end`, in minutes after midnight; it may go over midnight.

    `zone` is a name of the IANA time zone database; None: the machine's own zone.
    """

    begin: int
    end: int
    zone: str | None = None

    @property
    def text(self) -> str:
        """`22:00 to 06:00 Europe/Berlin`."""
        begin, end = (f"{minute // 60:02}:{minute % 60:02}" for minute in (self.begin, self.end))
        return f"{begin} to {end}" + (f" {self.zone}" if self.zone else "")

    def hold(self, minute: int) -> bool:
        """Return whether a minute after midnight is in it."""
        if self.begin <= self.end:
            return self.begin <= minute < self.end
        return minute >= self.begin or minute < self.end


class PauseLimits(Struct, frozen=True, kw_only=True):
    """What makes a job pause: a temperature in degrees Celsius, a battery's charge in percent, free disk in bytes."""

    temperature: float | None = None
    battery: float | None = None
    free_disk: int | None = None

    @property
    def sensors(self) -> tuple[str, ...]:
        """The sensors that it takes."""
        named = {"temperature": self.temperature, "battery": self.battery}
        return tuple(name for name, limit in named.items() if limit is not None)

    @property
    def texts(self) -> tuple[str, ...]:
        """Each limit in words."""
        found = [] if self.temperature is None else [f"up to {self.temperature:g} °C"]
        found += [] if self.battery is None else [f"from {self.battery:g} % of the battery"]
        found += [] if self.free_disk is None else [f"from {format_size(self.free_disk)} of free disk"]
        return tuple(found)


class JobTiming(Struct, frozen=True, kw_only=True):
    """When a job may run. `until` is in seconds after its start."""

    hours: Hours | None = None
    until: float | None = None
    pause: PauseLimits | None = None

    @property
    def text(self) -> str:
        """`from 22:00 to 06:00, for 7200 s at most, up to 80 °C`; nothing for a job that may always run."""
        parts = [f"from {self.hours.text}"] if self.hours else []
        parts += [f"for {self.until:g} s at most"] if self.until else []
        return ", ".join([*parts, *(self.pause.texts if self.pause else ())])


ALWAYS = JobTiming()
"""At any time, for as long as it takes."""
