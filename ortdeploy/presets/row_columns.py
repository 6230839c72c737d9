"""Columns of `preset: generate` that say how their row is written; where one is empty, the manifest holds."""

import sys
from collections.abc import Mapping
from typing import Any

COLUMNS = {
    "max_new_tokens": "int64",
    "temperature": "float64",
    "top_p": "float64",
    "top_k": "int64",
    "repetition_penalty": "float64",
    "num_beams": "int64",
    "seed": "int64",
    "stop": "string",
    "language": "string",
}
"""Their element types."""
_LEAST = -(2**31)
_LEFT_OUT: Mapping[str, Any] = {
    "int64": -sys.maxsize - 1, "int32": _LEAST, **dict.fromkeys(("float64", "float32", "float16"), "nan"), "string": ""
}  # fmt: skip


def filler_of(name: str, dtype: str | None) -> Any:
    """Return what is fed to an input for an empty value of this element type; None if it may not be empty."""
    return _LEFT_OUT.get(dtype or "") if name in COLUMNS else None


def is_left_out(value: Any) -> bool:
    """Return whether what was fed stands for an empty value."""
    return value == "" if isinstance(value, str) else bool(value != value or value <= _LEAST)  # noqa: PLR0124  NaN
