"""Asks this ONNX Runtime for the highest IR version and operator sets that it loads.

It names them when it refuses a newer model (core/graph/model.cc, model_load_utils.h), before it reads the graph. With
ALLOW_RELEASED_ONNX_OPSET_ONLY=0, it does not refuse newer operator sets.
"""

import re

from ortdeploy.runtime.library import ort

_FATAL_ONLY = 4
_IR_VERSION = re.compile(r"max supported IR version: (\d+)")
_OPSET = re.compile(r"official support for domain \S+ is till opset (\d+)")
_NO_GRAPH = b"\x3a\x00"
_OPSET_17 = b"\x42\x02\x10\x11"
_LATER_IR_VERSION = b"\x08\xe7\x07" + _NO_GRAPH + _OPSET_17
"""A ModelProto of IR version 999 with nothing in it; those below are of IR version 10 and import a set 999."""
_LATER_OPSETS = {
    "ai.onnx": b"\x08\x0a" + _NO_GRAPH + b"\x42\x03\x10\xe7\x07",
    "ai.onnx.ml": b"\x08\x0a" + _NO_GRAPH + _OPSET_17 + b"\x42\x0f\x0a\x0aai.onnx.ml\x10\xe7\x07",
}


def find_limits() -> tuple[int | None, dict[str, int]]:
    """Return the highest IR version and opsets that ONNX Runtime tells."""
    opsets = {domain: _number(_OPSET, _refusal(model)) for domain, model in _LATER_OPSETS.items()}
    known = {domain: number for domain, number in opsets.items() if number is not None}
    return _number(_IR_VERSION, _refusal(_LATER_IR_VERSION)), known


def _refusal(model: bytes) -> str:
    """Return why ONNX Runtime does not load a model; nothing if it does."""
    options = ort.SessionOptions()
    options.log_severity_level = _FATAL_ONLY
    options.intra_op_num_threads = 1
    try:
        ort.InferenceSession(model, options, providers=["CPUExecutionProvider"], enable_fallback=0)
    except Exception as error:  # noqa: BLE001  every error of the binding is its own class, all derived from Exception
        return str(error)
    return ""


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return int(found[1]) if found else None
