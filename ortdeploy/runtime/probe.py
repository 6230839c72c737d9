"""Looks at this machine's ONNX Runtime and writes down `RuntimeFacts`."""

import importlib.util

import onnxruntime

from ortdeploy.facts import RuntimeFacts
from ortdeploy.runtime.limits import limits_of

_EXTRAS = ("PIL",)


def probe_runtime() -> RuntimeFacts:
    """Return version, providers and limits of the installed onnxruntime, and which extras are there."""
    ir_version, opsets = limits_of(onnxruntime.__version__)
    return RuntimeFacts(
        version=onnxruntime.__version__,
        available_providers=tuple(onnxruntime.get_available_providers()),
        max_ir_version=ir_version,
        max_opsets=opsets,
        packages=frozenset(name for name in _EXTRAS if importlib.util.find_spec(name)),
    )
