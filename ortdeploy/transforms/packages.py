"""Which Python package a prepare step needs."""

from collections.abc import Mapping
from typing import Any

from ortdeploy.facts.problems import Package
from ortdeploy.transforms.resample import SOXR
from ortdeploy.transforms.sampling import package_of


def package_of_step(name: str, options: Mapping[str, Any]) -> Package | None:
    """Return the package that a prepare step needs; None if it needs none."""
    if name == "resample":
        return SOXR
    return package_of(options) if name == "resize" else None
