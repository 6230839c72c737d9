"""Compares two machines' versions and processors before anything runs, because parts must be equal in bytes."""

import platform
from collections.abc import Mapping
from typing import Any

from ortdeploy.runtime.machine import probe_machine
from ortdeploy.versions import package_version, versions

_OF_PARTS = ("pyarrow", "pillow", "soxr", "tokenizers")
"""Packages of extras that decode rows or write parts; pyarrow writes its version into each Parquet file."""


def facts_of_this_worker() -> dict[str, Any]:
    """Return the versions and the processor that decide whether this machine writes the same bytes, as JSON."""
    machine = probe_machine()
    found = {name: version for name, version in versions().items() if name not in {"platform", "python"}}
    packages = {**found, **{name: package_version(name) for name in _OF_PARTS}}
    python = ".".join(machine.python.split(".")[:2])
    return {
        "host": platform.node(),
        "versions": {**packages, "python": python, "architecture": machine.architecture},
        "processor": sorted(machine.cpu_flags),
    }


def why_refused(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str | None:
    """Return which versions of a worker differ from the driver's, in words; None if none does."""
    wanted, found = ours["versions"], theirs["versions"]
    others = [
        f"{name} is {found.get(name, 'not installed')} there and {wanted.get(name, 'not installed')} here"
        for name in dict.fromkeys([*wanted, *found])
        if wanted.get(name) != found.get(name)
    ]
    return "; ".join(others) or None


def has_other_processor(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Return whether ONNX Runtime may choose other kernels there, whose results may differ in the last digits."""
    return bool(ours["processor"] != theirs["processor"])
