"""ONNX Runtime itself, as every module here gets it: with its telemetry off.

It reports sessions and errors to Microsoft unless it is told not to: on Windows by the call below, elsewhere by a
variable of the environment (`switch_off_telemetry`), because the call comes after its first report.
"""

import hashlib
import json
import re
from pathlib import Path

from ortdeploy.files.digests import boot_id, signature
from ortdeploy.process.libraries import switch_off_telemetry

switch_off_telemetry()

import numpy  # noqa: E402, F401, ICN001  the next line's native code would print a traceback where it cannot be loaded
import onnxruntime as ort  # noqa: E402  which reads at once what was just set
from onnxruntime.capi import _pybind_state as binding  # noqa: E402

ort.disable_telemetry_events()

__all__ = ["binding", "first_line", "library_id", "ort", "preload", "says_no_memory"]

_NATIVE = (".dll", ".dylib", ".pyd", ".so")
_NO_MEMORY = re.compile(
    "(?:failed to|could not) allocate|bad_alloc|out of memory|out_of_memory|alloc_failed|smaller than requested bytes",
    re.IGNORECASE,
)
"""What ONNX Runtime's arenas, GenAI and the devices' libraries say when there is no memory."""


def library_id() -> str:
    """Return what is another where ONNX Runtime's library was exchanged, or after the next start of the machine."""
    files = (file for file in sorted(Path(ort.__file__).with_name("capi").iterdir()) if _is_native(file.name))
    states = [(file.name, signature(file.stat())) for file in files]
    return hashlib.sha256(json.dumps([ort.__version__, boot_id(), states]).encode()).hexdigest()


def _is_native(name: str) -> bool:
    return name.endswith(_NATIVE) or ".so." in name


def preload() -> None:
    """Load CUDA and cuDNN from where pip's nvidia packages put them, if this wheel wants them."""
    ort.preload_dlls()


def first_line(error: Exception) -> str:
    """Return the first line of what an error of a native library says."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def says_no_memory(error: Exception) -> bool:
    """Return whether an error means that memory ran out, rather than that something is wrong with what was run."""
    return _NO_MEMORY.search(str(error)) is not None
