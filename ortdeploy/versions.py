"""The versions for reports and bug messages, and those of ONNX Runtime with which imitations of it were tested."""

import os
import platform
import sys
from contextlib import suppress
from functools import cache

from ortdeploy.diagnostics import Certainty

PACKAGES = ("ortdeploy", "onnxruntime", "onnx", "numpy")
OPTIONAL = ("onnxruntime-extensions",)
"""Packages that compute results where they are installed."""

TESTED_WITH = ("1.31", "1.32")
"""The versions of ONNX Runtime whose choice of kernels and use of memory are imitated and were compared with."""

_MISSING = "not installed"


def certainty_with(runtime: str) -> Certainty:
    """Return how sure an imitation of ONNX Runtime is for one of its versions: of one that was not tested, assumed."""
    return Certainty.MACHINE if ".".join(runtime.split(".")[:2]) in TESTED_WITH else Certainty.ASSUMED


def package_version(name: str) -> str:
    """Return the version of an installed distribution."""
    return _installed(tuple(sys.path)).get(name.replace("-", "_"), _MISSING)


@cache
def _installed(path: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of distributions by their names with underscores, from the names of their folders.

    `importlib.metadata` goes by the same names, and takes longer to import than all that a small job does.
    """
    found: dict[str, str] = {}
    for folder in path:
        with suppress(OSError):
            for entry in os.listdir(folder or "."):  # noqa: PTH208  names are all that is wanted
                name, _, version = entry.removesuffix(".dist-info").partition("-")
                if entry.endswith(".dist-info") and version:
                    found.setdefault(name.lower().replace("-", "_").replace(".", "_"), version)
    return found


def versions() -> dict[str, str]:
    """Return what to paste into a bug report."""
    found = {name: package_version(name) for name in (*PACKAGES, *OPTIONAL)}
    found = {name: known for name, known in found.items() if name in PACKAGES or known != _MISSING}
    return {**found, "python": platform.python_version(), "platform": _platform()}


@cache
def _platform() -> str:
    """Return what `platform.platform()` does; on Linux that starts a process, to learn how the processor is called."""
    if sys.platform != "linux":
        return platform.platform()
    system = platform.uname()
    library = "".join(platform.libc_ver())
    parts = (system.system, system.release, system.machine, *(("with", library) if library else ()))
    return "-".join(part.replace(" ", "_") for part in parts)
