"""Finds the control groups of this process, whose files say what it may use."""

from contextlib import suppress
from functools import cache
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


@cache
def group_folders(controller: str) -> tuple[Path, ...]:
    """Return the folders of this process's control groups, up to the root, in version 2 and in version 1.

    A line of /proc/self/cgroup is `0::/a/b`, or `5:memory:/a` in version 1, where each controller has a tree.
    """
    folders = [_CGROUP, _CGROUP / controller]
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = (*line.split(":", 2), "", "")[:3]
            root = _CGROUP / controller if controllers else _CGROUP
            if not controllers or controller in controllers.split(","):
                own = root / path.lstrip("/")
                folders += [own, *(parent for parent in own.parents if parent.is_relative_to(root))]
    return tuple(dict.fromkeys(folders))
