"""Reads the machine's temperature and battery below /sys on Linux; other systems give None."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

_SYS = Path("/sys/class")
_ZONES = ("cpu", "core", "gpu", "pkg", "soc", "tdie", "x86")
"""Parts of the names of thermal zones of processors, GPUs and systems on a chip."""

_CHIPS = ("amdgpu", "coretemp", "cpu_thermal", "k10temp", "nouveau", "soc_thermal", "zenpower")
"""The hwmon drivers of processors, GPUs and systems on a chip."""

_ABSURD = 200.0
"""Degrees Celsius; a sensor above it, or below its negative, is broken."""


class Temperature(Struct, frozen=True):
    """The hottest sensor of processor, GPU or SoC, in degrees Celsius."""

    celsius: float
    sensor: str


class Battery(Struct, frozen=True):
    """The charge of the battery in percent, and whether it is being discharged."""

    percent: float
    discharging: bool


def read_temperature(root: Path = _SYS) -> Temperature | None:
    """Return the hottest sensor; None if there is none."""
    return max(_temperatures(root), key=lambda one: one.celsius, default=None)


def entries(folder: Path, begin: str, end: str = "") -> Iterator[Path]:
    """Yield what a folder has under names that begin and end so; none if it cannot be read.

    `Path.glob` compiles each pattern, which takes longer than to look.
    """
    with suppress(OSError):
        yield from (folder / name for name in os.listdir(folder) if name.startswith(begin) and name.endswith(end))  # noqa: PTH208  names are all that is wanted


def _temperatures(root: Path) -> Iterator[Temperature]:
    for zone in entries(root / "thermal", "thermal_zone"):
        name = text_of(zone / "type")
        if any(part in name.lower() for part in _ZONES):
            yield from _celsius(zone / "temp", name)
    for chip in entries(root / "hwmon", "hwmon"):
        name = text_of(chip / "name")
        if name in _CHIPS:
            for sensor in entries(chip, "temp", "_input"):
                yield from _celsius(sensor, f"{name} {sensor.name.removesuffix('_input')}")


def _celsius(path: Path, sensor: str) -> Iterator[Temperature]:
    with suppress(ValueError):
        celsius = int(text_of(path)) / 1000
        if abs(celsius) < _ABSURD:
            yield Temperature(celsius, sensor)


def read_battery(root: Path = _SYS) -> Battery | None:
    """Return the emptiest battery of the machine itself; None if there is none."""
    found = []
    for supply in entries(root / "power_supply", ""):
        is_own = text_of(supply / "scope") != "Device"  # a mouse has one too
        with suppress(ValueError):
            if is_own and text_of(supply / "type") == "Battery":
                found.append(Battery(int(text_of(supply / "capacity")), text_of(supply / "status") == "Discharging"))
    return min(found, key=lambda one: one.percent, default=None)


def text_of(path: Path) -> str:
    """Return the content of a file; empty if it cannot be read, as with a sensor that sleeps."""
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").strip()
    return ""
