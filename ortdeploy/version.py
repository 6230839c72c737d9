"""The versions that reports and bug messages name."""

import platform
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("ortdeploy", "onnxruntime", "onnx", "numpy")


def package_version(name: str) -> str:
    """Return the version of an installed distribution."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def versions() -> dict[str, str]:
    """Return what to paste into a bug report."""
    found = {name: package_version(name) for name in PACKAGES}
    return {**found, "python": platform.python_version(), "platform": platform.platform()}
