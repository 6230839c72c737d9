"""Calls ONNX Runtime, whose telemetry is switched off before any module here loads it."""

from ortdeploy.process.libraries import switch_off_telemetry

switch_off_telemetry()
