"""Looks at this machine's ONNX Runtime and writes down `RuntimeFacts`."""

import importlib.util
from collections.abc import Collection, Mapping

import onnxruntime

from ortdeploy.facts import DeviceFacts, RuntimeFacts
from ortdeploy.providers.catalogue import find_provider
from ortdeploy.runtime.limits import limits_of
from ortdeploy.runtime.plugin_probe import probe_plugin
from ortdeploy.runtime.plugins import find_library

_EXTRAS = ("PIL",)


def probe_runtime(wanted: Mapping[str, str | None]) -> RuntimeFacts:
    """Return version, providers and limits of the installed onnxruntime, and which extras are there.

    `wanted` are the providers that manifests ask for, by their full names, with the library that they name or None.
    Libraries, and the plugin packages of providers that are not built in, are asked for their devices.
    """
    ir_version, opsets = limits_of(onnxruntime.__version__)
    devices, problems = _probe_plugins(wanted, onnxruntime.get_available_providers())
    return RuntimeFacts(
        version=onnxruntime.__version__,
        available_providers=tuple(onnxruntime.get_available_providers()),
        max_ir_version=ir_version,
        max_opsets=opsets,
        packages=frozenset(name for name in _EXTRAS if importlib.util.find_spec(name)),
        devices=devices,
        plugin_problems=problems,
    )


def _probe_plugins(
    wanted: Mapping[str, str | None], built_in: Collection[str]
) -> tuple[tuple[DeviceFacts, ...], dict[str, str]]:
    devices: list[DeviceFacts] = []
    problems: dict[str, str] = {}
    for name, library in sorted(_libraries(wanted, built_in).items()):
        found, problem = probe_plugin(name, library)
        devices += found
        if problem is not None:
            problems[name] = problem
    return tuple(devices), problems


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
