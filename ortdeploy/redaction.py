"""Keeps secrets out of what is printed and logged: values whose name says that they are secret."""

import re
from typing import Any

_SECRET = re.compile(r"(password|passwd|secret|token|api_?key|auth|credential|private)", re.IGNORECASE)
MASK = "***"


def masked(key: str, value: Any) -> Any:
    """Return a value, or the mask in its place when its name says that it is secret."""
    if isinstance(value, dict):
        return {inner: masked(inner, item) for inner, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked("", item) for item in value]
    return MASK if _SECRET.search(key) and value is not None else value
