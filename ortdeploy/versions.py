"""The versions for reports and bug messages, and those of ONNX Runtime with which imitations of it were tested."""

import os
import platform
import re
import sys
from contextlib import suppress
from functools import cache

from ortdeploy.diagnostics import Certainty

TYPE_CHECKING = False  # typing takes as long to import as the rest of a command that has nothing to do
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_RUNTIME = "onnxruntime"
PACKAGES = ("ortdeploy", _RUNTIME, "onnx", "numpy")
OPTIONAL = ("onnxruntime-extensions",)
"""Packages that compute results where they are installed."""

TESTED_WITH = {
    "1.31": (13, {"ai.onnx": 26, "ai.onnx.ml": 5}),
    "1.32": (14, {"ai.onnx": 28, "ai.onnx.ml": 5}),
}
"""The versions of ONNX Runtime whose choice of kernels is imitated and was compared with.

With each, the highest IR version and operator sets that it loads.
"""

_MISSING = "not installed"


def certainty_with(runtime: str) -> Certainty:
    """Return how sure an imitation of ONNX Runtime is for one of its versions: of one that was not tested, assumed."""
    return Certainty.MACHINE if ".".join(runtime.split(".")[:2]) in TESTED_WITH else Certainty.ASSUMED


def package_version(name: str) -> str:
    """Return the version of an installed distribution."""
    return _installed(tuple(sys.path)).get(name.replace("-", "_"), _MISSING)


def release_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of the release that a version belongs to: (0, 4, 0) for 0.4.0.dev3."""
    found = re.match(r"\d{1,9}(\.\d{1,9})*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


@cache
def _installed(path: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of distributions by their names with underscores, from the names of their folders.

    `importlib.metadata` goes by the same names, and takes longer to import than all that a small job does.
    """
    found: dict[str, str] = {}
    for _, name, version in _distributions(path):
        found.setdefault(name.lower().replace("-", "_").replace(".", "_"), version)
    return found


def _distributions(path: "Iterable[str]") -> "Iterator[tuple[str, str, str]]":
    """Yield the folder of each distribution's metadata, and its name and version, both as the folder is called."""
    for folder in path:
        with suppress(OSError):
            for entry in os.listdir(folder or "."):  # noqa: PTH208  names are all that is wanted
                name, _, version = entry.removesuffix(".dist-info").partition("-")
                if entry.endswith(".dist-info") and version:
                    yield os.path.join(folder, entry), name, version  # noqa: PTH118  text


def runtime_version() -> str:
    """Return the version of the package that carries onnxruntime; of another name also that, for it is built otherwise.

    `1.31.1`, or `1.31.1 (onnxruntime-gpu)`.
    """
    version = package_version(_RUNTIME)
    return _version_of_carrier(tuple(sys.path)) if version == _MISSING else version


@cache
def _version_of_carrier(path: tuple[str, ...]) -> str:
    for info, name, version in _distributions(path):
        if name.startswith(_RUNTIME) and carries_runtime(info):
            return f"{version} ({name.replace('_', '-')})"
    return _MISSING


def carries_runtime(info: str) -> bool:
    """Return whether a distribution unpacks into the folder onnxruntime; its RECORD lists every file."""
    with suppress(OSError), open(os.path.join(info, "RECORD"), encoding="utf-8") as record:  # noqa: PTH118, PTH123  text
        return "\nonnxruntime/__init__.py," in "\n" + record.read()
    return False


_FOR_BUILDERS = frozenset({"all", "dev", "docs", "test"})
"""Extras that add nothing which a manifest can use."""


def missing_of_extras(requires: "Iterable[str] | None" = None) -> dict[str, tuple[str, ...]]:
    """Return each extra that this machine can have with the packages that it lacks, as `s3fs>=2025.7`.

    `requires` are requirements as metadata of a package has them, by default those of ortdeploy.
    """
    from importlib.metadata import PackageNotFoundError, distribution  # noqa: PLC0415  see `_installed`

    from packaging.requirements import Requirement  # noqa: PLC0415  comes with onnxruntime, and only doctor needs it

    if requires is None:
        try:
            requires = distribution("ortdeploy").requires or ()
        except PackageNotFoundError:  # runs from a folder of sources
            return {}
    found: dict[str, tuple[str, ...]] = {}
    for one in map(Requirement, requires):
        for extra in set(re.findall(_EXTRA, str(one.marker))) - _FOR_BUILDERS:
            if one.marker is not None and one.marker.evaluate({"extra": extra}):
                version = package_version(one.name.lower())
                fits = version != _MISSING and one.specifier.contains(version, prereleases=True)
                found[extra] = (*found.get(extra, ()), *(() if fits else (f"{one.name}{one.specifier}",)))
    return dict(sorted(found.items()))


_EXTRA = r"""extra == ["']([\w-]+)["']"""


def versions() -> dict[str, str]:
    """Return what to paste into a bug report."""
    found = {name: package_version(name) for name in (*PACKAGES, *OPTIONAL)}
    found[_RUNTIME] = runtime_version()
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
