"""Measures energy, temperature and NVIDIA device memory during a run, if the machine reports them.

Energy comes from RAPL (/sys/class/powercap, which often only root may read), from meters of hwmon, and from NVML.
Temperature and memory of devices come from NVML, which is in the extra `nvidia` and is loaded only for runs on such a
device. All values are of the whole machine or device; a process's own device memory is listed beside them.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from ortdeploy.process.sensors import entries, read_temperature, text_of

SECONDS_BETWEEN = 1.0
"""Seconds between two readings of the gauges, at least."""

_SYS = Path("/sys/class")
_MICRO, _MILLI = 1e-6, 1e-3


class Meter(Struct):
    """A counter of energy that only grows.

    `unit` is the joules of one step, `wraps` the count at which it restarts from 0.
    """

    name: str
    read: Callable[[], int | None]
    unit: float = _MICRO
    wraps: int | None = None
    _last: int | None = None
    _steps: int = 0

    def look(self) -> None:
        """Add the energy since the last look."""
        now = self.read()
        if now is None:
            return
        if self._last is not None:
            grown = now - self._last
            self._steps += grown if grown >= 0 else max(grown + (self.wraps or 0), 0)
        self._last = now

    @property
    def joules(self) -> float | None:
        """The energy since the first look, in joules; None if the counter cannot be read."""
        return None if self._last is None else round(self._steps * self.unit, 3)


class Devices(Protocol):
    """The devices of one maker."""

    def meters(self) -> list[Meter]:
        """Return the energy counters of the devices."""

    def memory(self) -> int | None:
        """Return the memory in bytes of the device that has most of it; None if that is not told."""

    def now(self) -> Mapping[str, Mapping[str, float]]:
        """Return for each device, if it reports them: its memory in use, this process's memory, and its temperature."""


class Gauges:
    """The gauges of one run, which begins with the first look."""

    def __init__(self, devices: Devices | None = None, root: Path = _SYS) -> None:
        """Find the gauges that can be read, and read them for the first time."""
        self._devices, self._root = devices, root
        self._meters = [*_rapl(root), *_hwmon(root), *(devices.meters() if devices is not None else ())]
        self._hottest: dict[str, Any] | None = None
        self._highest: dict[str, dict[str, float]] = {}
        self._looked = float("-inf")
        self.look()

    def look(self) -> None:
        """Read the gauges, but not more often than every SECONDS_BETWEEN seconds."""
        now = time.monotonic()
        if now - self._looked >= SECONDS_BETWEEN:
            self._looked = now
            self._read()

    def plain(self) -> dict[str, Any]:
        """Return the highest values and the energy since the first look, as JSON values."""
        self._read()
        energy = {meter.name: meter.joules for meter in self._meters if meter.joules is not None}
        return {
            "temperature": self._hottest,
            "energy_joules": energy,
            "devices": [{"device": name, **values} for name, values in self._highest.items()],
        }

    def _read(self) -> None:
        for meter in self._meters:
            meter.look()
        heat = read_temperature(self._root)
        if heat is not None and (self._hottest is None or heat.celsius > self._hottest["celsius"]):
            self._hottest = {"celsius": heat.celsius, "sensor": heat.sensor}
        for name, values in (self._devices.now() if self._devices is not None else {}).items():
            highest = self._highest.setdefault(name, {})
            highest.update({key: max(value, highest.get(key, value)) for key, value in values.items()})


def _rapl(root: Path) -> Iterator[Meter]:
    """Yield the meters of whole processors and of the whole machine; these include their parts."""
    for zone in sorted(entries(root / "powercap", "")):
        if zone.name.count(":") == 1 and _number(zone / "energy_uj") is not None:
            name = f"{text_of(zone / 'name') or zone.name} ({zone.name})"
            yield Meter(name=name, read=_reader(zone / "energy_uj"), wraps=_number(zone / "max_energy_range_uj"))


def _hwmon(root: Path) -> Iterator[Meter]:
    for chip in sorted(entries(root / "hwmon", "hwmon")):
        for sensor in sorted(entries(chip, "energy", "_input")):
            if _number(sensor) is not None:
                label = text_of(chip / sensor.name.replace("_input", "_label")) or sensor.name.removesuffix("_input")
                yield Meter(name=f"{text_of(chip / 'name')} {label} ({chip.name})", read=_reader(sensor))


def _reader(path: Path) -> Callable[[], int | None]:
    return lambda: _number(path)


def _number(path: Path) -> int | None:
    with suppress(ValueError):
        return int(text_of(path))
    return None


def nvidia_devices() -> Devices | None:
    """Return the NVIDIA devices of this machine; None if NVML, its package or a device is missing."""
    try:
        import pynvml  # noqa: PLC0415  only for such a device

        pynvml.nvmlInit()
        return _Nvidia(pynvml) if pynvml.nvmlDeviceGetCount() else None
    except Exception:  # noqa: BLE001  no package, no driver, no rights: then nothing is told
        return None


class _Nvidia:
    """Devices by NVML. Any call of NVML may be unsupported by a device; its value is then left out."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._handles = {}
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            self._handles[f"{index} {nvml.nvmlDeviceGetName(handle)}"] = handle

    def meters(self) -> list[Meter]:
        """Return the energy counters of the devices, in millijoules since the driver was loaded."""
        return [Meter(name=name, read=self._energy(one), unit=_MILLI) for name, one in self._handles.items()]

    def _energy(self, handle: Any) -> Callable[[], int | None]:
        return lambda: self._asked(lambda: int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle)))

    def memory(self) -> int | None:
        """Return the memory in bytes of the device that has most of it; None if that is not told."""
        nvml, handles = self._nvml, self._handles.values()
        return self._asked(lambda: max(int(nvml.nvmlDeviceGetMemoryInfo(one).total) for one in handles))

    def now(self) -> Mapping[str, Mapping[str, float]]:
        """Return for each device, if it reports them: its memory in use, this process's memory, and its temperature."""
        return {name: dict(self._of(handle)) for name, handle in self._handles.items()}

    def _of(self, handle: Any) -> Iterator[tuple[str, float]]:
        nvml = self._nvml
        values = {
            "memory_used_bytes": self._asked(lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).used)),
            "memory_of_process_bytes": self._asked(lambda: self._own_memory(handle)),
            "celsius": self._asked(lambda: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))),
        }
        yield from ((name, value) for name, value in values.items() if value is not None)

    def _own_memory(self, handle: Any) -> int | None:
        """Return the memory of this process in bytes; None in a container, where NVML reports no processes."""
        own = [one for one in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle) if one.pid == os.getpid()]
        return own[0].usedGpuMemory if own else None

    def _asked(self, ask: Callable[[], int | None]) -> int | None:
        try:
            return ask()
        except self._nvml.NVMLError:
            return None
