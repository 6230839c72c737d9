"""What each ONNX Runtime release can load at most: IR version and operator sets.

Source: https://onnxruntime.ai/docs/reference/compatibility.html and loading models made for it with the wheels.
"""

LIMITS: dict[tuple[int, int], tuple[int, int, int]] = {
    (1, 31): (13, 26, 5),
    (1, 30): (13, 26, 5),
}
"""Release → highest IR version, highest opset of ai.onnx, highest of ai.onnx.ml."""


def limits_of(version: str) -> tuple[int | None, dict[str, int]]:
    """Return the highest IR version and opsets, or none at all for a release that this table does not know."""
    major, minor = (int(part) for part in version.split(".")[:2])
    if (major, minor) not in LIMITS:
        return None, {}
    ir_version, onnx, onnx_ml = LIMITS[major, minor]
    return ir_version, {"ai.onnx": onnx, "ai.onnx.ml": onnx_ml}
