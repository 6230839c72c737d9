"""How many cores this process may use: the one rule for threads and processes."""

import math
import os
from contextlib import suppress
from pathlib import Path

from ortdeploy.process.control_group import group_folders

_QUOTA_FILES = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
"""Files with the quota and the period of a control group, in version 2 and version 1."""


def core_count() -> int:
    """Return the number of cores of the affinity mask, which is also how many threads a session starts at most."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def cpu_quota() -> float | None:
    """Return the smallest number of cores that this process's control group and its parents allow; None without one."""
    return min((quota for quota in map(_quota_in, group_folders("cpu")) if quota is not None), default=None)


def usable_cores() -> int:
    """Return how many threads or processes of this process can work at once."""
    return within_quota(core_count(), cpu_quota())


def within_quota(cores: int, quota: float | None) -> int:
    """Return how many of some cores can work at once under a quota in cores: a quota of 1.5 keeps two at work."""
    return cores if quota is None else min(cores, max(1, math.ceil(quota)))


def _quota_in(folder: Path) -> float | None:
    for names in _QUOTA_FILES:
        with suppress(OSError):
            words = " ".join((folder / name).read_text(encoding="utf-8") for name in names).split()
            if len(words) == 2 and all(word.isdecimal() for word in words):  # noqa: PLR2004  quota and period
                return int(words[0]) / int(words[1])
    return None
