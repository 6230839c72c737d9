"""Probes this machine's ONNX Runtime, and returns `RuntimeFacts`."""

import locale
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from pathlib import Path

from ortdeploy.facts.host import DEFAULT_LOCALE, RuntimeFacts
from ortdeploy.providers.catalogue import find_provider
from ortdeploy.runtime.kernels import KnownKernels, known_attributes
from ortdeploy.runtime.library import library_id, ort
from ortdeploy.runtime.native_library import find_missing, loading_problem
from ortdeploy.runtime.plugin_probe import probe_plugin
from ortdeploy.runtime.plugins import find_library
from ortdeploy.runtime.supported_versions import find_limits
from ortdeploy.versions import carries_runtime

_EXTRAS = (
    "PIL",
    "av",
    "onnxruntime_extensions",
    "onnxruntime_genai",
    "optimum",
    "pyarrow",
    "soundfile",
    "soxr",
    "tokenizers",
)


def probe_runtime(
    wanted: Mapping[str, str | None], libraries: Mapping[str, Collection[str]] | None = None
) -> RuntimeFacts:
    """Return version, providers and limits of the installed onnxruntime, and which extras are there.

    `wanted` are the providers that manifests ask for, by their full names, with the library that they name or None.
    Libraries, and the plugin packages of providers that are not built in, are asked for their devices. `libraries` are
    those that options of these providers decide.
    """
    ir_version, opsets = find_limits()
    built_in = ort.get_available_providers()
    of_plugins = _libraries(wanted, built_in)
    plugins = {name: probe_plugin(name, library) for name, library in sorted(of_plugins.items())}
    kernels = {name: plugin.kernels for name, plugin in plugins.items() if plugin.kernels}
    problems = {name: plugin.problem for name, plugin in plugins.items() if plugin.problem is not None}
    unloadable = {name: problem for name in built_in if name in wanted and (problem := loading_problem(name))}
    return RuntimeFacts(
        version=ort.__version__,
        available_providers=tuple(name for name in built_in if name not in unloadable),
        max_ir_version=ir_version,
        max_opsets=opsets,
        packages=frozenset(name for name in _EXTRAS if find_spec(name)),
        devices=tuple(device for plugin in plugins.values() for device in plugin.devices),
        plugin_problems={**problems, **unloadable},
        missing_libraries={
            name: missing
            for name, names in (libraries or {}).items()
            if (name in built_in or name in of_plugins) and (missing := find_missing(of_plugins.get(name), names))
        },
        runtime_packages=runtime_packages(Path(ort.__file__).parents[1]),
        attributes=known_attributes(),
        has_default_locale=_has_locale(DEFAULT_LOCALE),
        kernels=KnownKernels(kernels),
        library=library_id(),
    )


def _has_locale(name: str) -> bool:
    """Return whether the system has a locale; Python's own does not change."""
    before = locale.setlocale(locale.LC_CTYPE)
    try:
        locale.setlocale(locale.LC_CTYPE, name)
    except locale.Error:
        return False
    finally:
        locale.setlocale(locale.LC_CTYPE, before)
    return True


def runtime_packages(folder: Path) -> tuple[str, ...]:
    """Return the distributions of a folder that contain the module onnxruntime; several overwrite each other.

    One in another folder overwrites nothing: Python imports what comes first in its path.
    """
    found = folder.glob("onnxruntime*.dist-info")
    return tuple(sorted(_name_of(info) for info in found if carries_runtime(str(info))))


def _name_of(info: Path) -> str:
    """Return the name that a distribution gives itself in its metadata."""
    lines = (info / "METADATA").read_text(encoding="utf-8", errors="replace").splitlines()
    return next(line.removeprefix("Name:").strip() for line in lines if line.startswith("Name:"))


def _libraries(wanted: Mapping[str, str | None], built_in: Collection[str]) -> dict[str, str]:
    """Return the library of each provider that comes as a plugin."""
    libraries: dict[str, str] = {}
    for name, given in wanted.items():
        provider = find_provider(name)
        packaged = find_library(provider) if provider and name not in built_in else None
        library = given or packaged
        if library is not None:
            libraries[name] = library
    return libraries
