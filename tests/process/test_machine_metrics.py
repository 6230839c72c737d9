"""What a run takes of its machine, by meters in a tree like /sys/class and by an NVML that is made up."""

import os
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ortdeploy.process.machine_metrics import Gauges, nvidia_devices


def write(root: Path, files: dict[str, object]) -> None:
    for name, value in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{value}\n")


RAPL = {
    "powercap/intel-rapl:0/name": "package-0",
    "powercap/intel-rapl:0/energy_uj": 900_000,
    "powercap/intel-rapl:0/max_energy_range_uj": 1_000_000,
    "powercap/intel-rapl:0:0/name": "core",
    "powercap/intel-rapl:0:0/energy_uj": 1,
    "powercap/dtpm/name": "no zone",
}


def test_energy_is_what_meters_have_counted_also_where_they_begin_anew(tmp_path: Path) -> None:
    write(tmp_path, {**RAPL, "hwmon/hwmon3/name": "amd_energy", "hwmon/hwmon3/energy1_input": 5_000_000,
                     "hwmon/hwmon3/energy1_label": "Esocket0"})  # fmt: skip
    gauges = Gauges(root=tmp_path)
    assert set(gauges.plain()["energy_joules"].values()) == {0.0}
    write(tmp_path, {"powercap/intel-rapl:0/energy_uj": 100_000, "hwmon/hwmon3/energy1_input": 7_500_000})
    assert gauges.plain()["energy_joules"] == {"package-0 (intel-rapl:0)": 0.2, "amd_energy Esocket0 (hwmon3)": 2.5}
    (tmp_path / "powercap/intel-rapl:0/energy_uj").unlink()
    assert gauges.plain()["energy_joules"]["package-0 (intel-rapl:0)"] == 0.2


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    assert Gauges(root=tmp_path).plain() == {"temperature": None, "energy_joules": {}, "devices": []}


def test_the_highest_temperature_stays_and_gauges_are_read_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    write(tmp_path, {"thermal/thermal_zone0/type": "soc-thermal", "thermal/thermal_zone0/temp": 50_000})
    gauges = Gauges(root=tmp_path)
    write(tmp_path, {"thermal/thermal_zone0/temp": 90_000})
    gauges.look()  # too soon
    write(tmp_path, {"thermal/thermal_zone0/temp": 70_000})
    clock = 1.0
    gauges.look()
    write(tmp_path, {"thermal/thermal_zone0/temp": 60_000})
    assert gauges.plain()["temperature"] == {"celsius": 70.0, "sensor": "soc-thermal"}


class NVMLError(Exception):
    """What NVML raises for what a device does not tell."""


class Card:
    """NVML of a card, whose values a test changes; each card beside it has half the memory of the one before."""

    def __init__(self) -> None:
        self.count = 1
        self.used, self.celsius, self.energy, self.pid = 100, 40, 5_000, os.getpid()

    def module(self) -> ModuleType:
        nvml: Any = ModuleType("pynvml")
        nvml.NVMLError, nvml.NVML_TEMPERATURE_GPU = NVMLError, 0
        nvml.nvmlInit = lambda: None
        nvml.nvmlDeviceGetCount = lambda: self.count
        nvml.nvmlDeviceGetHandleByIndex = lambda index: index
        nvml.nvmlDeviceGetName = lambda _: "Card"
        nvml.nvmlDeviceGetMemoryInfo = lambda index: SimpleNamespace(used=self.used, total=1_000 >> index)
        nvml.nvmlDeviceGetTemperature = lambda *_: self.celsius
        nvml.nvmlDeviceGetTotalEnergyConsumption = lambda _: self.counted()
        own = SimpleNamespace(pid=self.pid, usedGpuMemory=60)
        nvml.nvmlDeviceGetComputeRunningProcesses = lambda _: [own]
        return nvml  # type: ignore[no-any-return]

    def counted(self) -> int:
        if self.energy < 0:
            raise NVMLError("not supported")
        return self.energy


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    one = Card()
    monkeypatch.setitem(sys.modules, "pynvml", one.module())
    return one


def test_devices_tell_their_highest_memory_and_temperature(tmp_path: Path, card: Card) -> None:
    gauges = Gauges(nvidia_devices(), tmp_path)
    card.used, card.celsius, card.energy = 300, 35, 7_500
    gauges.plain()
    card.used = 200
    assert gauges.plain() == {
        "temperature": None,
        "energy_joules": {"0 Card": 2.5},
        "devices": [{"device": "0 Card", "memory_used_bytes": 300, "memory_of_process_bytes": 60, "celsius": 40}],
    }


def test_what_a_device_does_not_tell_is_left_out(tmp_path: Path, card: Card) -> None:
    assert (devices := nvidia_devices()) is not None
    assert devices.memory() == 1_000
    card.energy = -1
    gauges = Gauges(nvidia_devices(), tmp_path)
    assert gauges.plain()["energy_joules"] == {}
    assert gauges.plain()["devices"][0]["celsius"] == 40


def test_the_memory_of_a_machine_is_that_of_its_largest_device(card: Card) -> None:
    card.count = 2
    assert (devices := nvidia_devices()) is not None
    assert devices.memory() == 1_000


def test_without_nvml_there_are_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvidia_devices() is None
