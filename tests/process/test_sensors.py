"""What Linux shows of temperature and battery, in a tree like /sys/class."""

from pathlib import Path

import pytest

from ortdeploy.process.sensors import Battery, Temperature, read_battery, read_temperature


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_the_hottest_sensor_of_processor_gpu_or_soc_counts(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "thermal/thermal_zone0/type": "x86_pkg_temp\n",
            "thermal/thermal_zone0/temp": "61000\n",
            "thermal/thermal_zone1/type": "gpu-thermal\n",
            "thermal/thermal_zone1/temp": "72500\n",
            "thermal/thermal_zone2/type": "battery\n",
            "thermal/thermal_zone2/temp": "95000\n",
            "hwmon/hwmon0/name": "nvme\n",
            "hwmon/hwmon0/temp1_input": "99000\n",
            "hwmon/hwmon1/name": "k10temp\n",
            "hwmon/hwmon1/temp1_input": "70000\n",
        },
    )
    assert read_temperature(tmp_path) == Temperature(72.5, "gpu-thermal")


@pytest.mark.parametrize("text", ["", "hot", "-274000", "999000000"])
def test_a_broken_sensor_is_none(tmp_path: Path, text: str) -> None:
    write(tmp_path, {"thermal/thermal_zone0/type": "cpu-thermal", "thermal/thermal_zone0/temp": text})
    assert read_temperature(tmp_path) is None


def test_the_emptiest_battery_of_the_machine_itself_counts(tmp_path: Path) -> None:
    for name, kind, scope, percent in (
        ("BAT0", "Battery", "System", "80"),
        ("BAT1", "Battery", "", "35"),
        ("mouse", "Battery", "Device", "3"),
        ("AC", "Mains", "", "1"),
    ):
        folder = f"power_supply/{name}"
        write(tmp_path, {f"{folder}/type": kind, f"{folder}/scope": scope, f"{folder}/capacity": percent})
        write(tmp_path, {f"{folder}/status": "Discharging"})
    assert read_battery(tmp_path) == Battery(35, discharging=True)


def test_a_machine_without_sensors(tmp_path: Path) -> None:
    assert read_temperature(tmp_path) is None
    assert read_battery(tmp_path) is None
