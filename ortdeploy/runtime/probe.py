"""Looks at this machine's ONNX Runtime and writes down `RuntimeFacts`."""

import importlib.util
from collections.abc import Collection

import onnxruntime

from ortdeploy.facts import DeviceFacts, RuntimeFacts
from ortdeploy.providers.catalogue import find_provider
from ortdeploy.runtime.limits import limits_of
from ortdeploy.runtime.plugin_probe import probe_plugin
from ortdeploy.runtime.plugins import find_library

_EXTRAS = ("PIL",)


def probe_runtime(names: Collection[str]) -> RuntimeFacts:
    """Return version, providers and limits of the installed onnxruntime, and which extras are there.

    `names` are the providers that manifests ask for, as written; of those that are not built in, the devices of their
    plugin packages are asked for too.
    """
    ir_version, opsets = limits_of(onnxruntime.__version__)
    devices, problems = _probe_plugins(names, onnxruntime.get_available_providers())
    return RuntimeFacts(
        version=onnxruntime.__version__,
        available_providers=tuple(onnxruntime.get_available_providers()),
        max_ir_version=ir_version,
        max_opsets=opsets,
        packages=frozenset(name for name in _EXTRAS if importlib.util.find_spec(name)),
        devices=devices,
        plugin_problems=problems,
    )


def _probe_plugins(names: Collection[str], built_in: Collection[str]) -> tuple[tuple[DeviceFacts, ...], dict[str, str]]:
    devices: list[DeviceFacts] = []
    problems: dict[str, str] = {}
    wanted = {provider.name: provider for provider in map(find_provider, names) if provider is not None}
    for provider in sorted(wanted.values(), key=lambda provider: provider.name):
        library = None if provider.name in built_in else find_library(provider)
        if library is None:
            continue
        found, problem = probe_plugin(provider.name, library)
        devices += found
        if problem is not None:
            problems[provider.name] = problem
    return tuple(devices), problems
