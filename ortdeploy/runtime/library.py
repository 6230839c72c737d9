"""ONNX Runtime itself, as every module here gets it: with its telemetry off.

On Windows it reports sessions and errors to Microsoft unless it is told not to; elsewhere the call does nothing.
"""

import onnxruntime as ort

ort.disable_telemetry_events()

__all__ = ["ort"]
