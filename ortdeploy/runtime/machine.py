"""Probes this machine: cores, quota, memory, and the processor features that ONNX Runtime's kernels use."""

import os
import platform
from pathlib import Path

from ortdeploy.facts.host import MachineFacts
from ortdeploy.process.cores import core_count, cpu_quota
from ortdeploy.process.memory import memory_of_the_group
from ortdeploy.process.sensors import read_battery, read_temperature, text_of

_FLAGS = (
    "amx_bf16", "amx_int8", "asimddp", "asimdhp", "avx", "avx2", "avx512_bf16", "avx512_fp16", "avx512_vnni", "avx512f",
    "avx_vnni", "bf16", "f16c", "fma", "i8mm", "sme", "sve", "sve2",
)  # fmt: skip
_MEMINFO = Path("/proc/meminfo")
_CPUINFO = Path("/proc/cpuinfo")
_KIB = 1024


def probe_machine() -> MachineFacts:
    """Return the facts of this machine; None or empty if the system does not tell."""
    return MachineFacts(
        system=platform.system(),
        architecture=platform.machine(),
        python=platform.python_version(),
        cores=core_count(),
        cpu_quota=cpu_quota(),
        memory_bytes=_memory(),
        cpu_flags=_cpu_flags(),
        sensors=_sensors(),
        total_memory_bytes=total_memory(),
        online_cores=online_cores(),
    )


def _sensors() -> frozenset[str]:
    found = {"temperature": read_temperature(), "battery": read_battery()}
    return frozenset(name for name, value in found.items() if value is not None)


def total_memory() -> int | None:
    """Return the memory that the system has, in bytes."""
    total = text_of(_MEMINFO).partition("MemTotal:")[2].split()
    return int(total[0]) * _KIB if total and total[0].isdecimal() else None


def online_cores() -> int | None:
    """Return how many cores are online, whichever of them this process may use."""
    return os.cpu_count()


def _memory() -> int | None:
    """Return the smaller of the machine's memory and the control group's limit, in bytes."""
    return min((one for one in (total_memory(), memory_of_the_group()) if one is not None), default=None)


def _cpu_flags() -> tuple[str, ...]:
    """Return the relevant features, by the Linux kernel's names (x86: flags, Arm: Features)."""
    lines = text_of(_CPUINFO).splitlines()
    line = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    present = set(line.partition(":")[2].split())
    return tuple(flag for flag in _FLAGS if flag in present)
