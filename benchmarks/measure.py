"""What the benchmarks share: run a process, take medians."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path


def seconds(command: Sequence[str], cwd: Path | None = None) -> float:
    """Return how long a command takes; it must end well."""
    begin = time.perf_counter()
    subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begin


def interleaved(cases: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Measure cases in turn, so that a noisy moment hits all of them; return each one's median."""
    found: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            found[name].append(case())
    return {name: statistics.median(values) for name, values in found.items()}


def ortdeploy(*arguments: str) -> list[str]:
    """Return the command line of ortdeploy's own entry point."""
    return [str(Path(sys.executable).with_name("ortdeploy")), *arguments]


def describe_machine() -> str:
    """Return what the figures were measured on."""
    return f"Python {sys.version.split()[0]}, {os.cpu_count()} cores"
