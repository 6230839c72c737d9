"""What the benchmarks share: run a process, take medians."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


def seconds(command: Sequence[str], cwd: Path | None = None) -> float:
    """Return how long a command takes; it must end well."""
    begin = time.perf_counter()
    subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begin


@dataclass(frozen=True)
class Rounds:
    """The seconds of each case in every round."""

    found: Mapping[str, Sequence[float]]

    def __getitem__(self, name: str) -> float:
        """Return a case's median."""
        return statistics.median(self.found[name])

    def ratio(self, name: str, other: str) -> float:
        """Return the median of the rounds' own ratios: a machine that is slow for a minute is so for both."""
        return statistics.median(a / b for a, b in zip(self.found[name], self.found[other], strict=True))


def interleaved(cases: Mapping[str, Callable[[], float]], rounds: int) -> Rounds:
    """Measure cases in turn, so that a noisy moment hits all of them."""
    found: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            found[name].append(case())
    return Rounds(found)


def ortdeploy(*arguments: str) -> list[str]:
    """Return the command line of ortdeploy's own entry point."""
    return [str(Path(sys.executable).with_name("ortdeploy")), *arguments]


def describe_machine() -> str:
    """Return what the figures were measured on."""
    return f"Python {sys.version.split()[0]}, {os.cpu_count()} cores"
