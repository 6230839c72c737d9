"""How much results may differ that are computed twice, by the number format that they are computed in."""

Tolerance = tuple[float, float]
"""Relative to the largest value, and absolute."""

TOLERANCES: dict[str, Tolerance] = {
    "float64": (1e-5, 1e-8),
    "float32": (1e-3, 1e-5),
    "tf32": (0.02, 1e-3),
    "float16": (0.02, 1e-3),
    "bfloat16": (0.05, 0.01),
    "quantized": (0.05, 1e-3),  # noise in the last bit may round a value to another one of 256
}
"""Of one provider that runs the same rows once more, in another batch or at another time."""

UNKNOWN: Tolerance = (0.05, 1e-3)
"""Of two providers, one of which may compute in any format: float16 and int8 pass, zeros and noise do not."""

BETWEEN_PROVIDERS: dict[str, Tolerance] = {
    "float32": TOLERANCES["float16"],  # other algorithms, such as Winograd's, and faster functions
    "bfloat16": TOLERANCES["bfloat16"],
}
"""Of two providers, by the coarsest format that one of them computes in; `UNKNOWN` of any other."""
