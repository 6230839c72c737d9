"""The versions that reports and bug messages name."""

import platform
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("ortdeploy", "onnxruntime", "onnx", "numpy")
OPTIONAL = ("onnxruntime-extensions",)
"""Packages that compute results where they are installed."""

_MISSING = "not installed"


def package_version(name: str) -> str:
    """Return the version of an installed distribution."""
    try:
        return version(name)
    except PackageNotFoundError:
        return _MISSING


def versions() -> dict[str, str]:
    """Return what to paste into a bug report."""
    found = {name: package_version(name) for name in (*PACKAGES, *OPTIONAL)}
    found = {name: known for name, known in found.items() if name in PACKAGES or known != _MISSING}
    return {**found, "python": platform.python_version(), "platform": platform.platform()}
