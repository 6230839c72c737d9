"""JSON that something else may have written or damaged."""

import json
from typing import Any


def read_json(text: str | bytes) -> Any:
    """Return what a JSON text says. Raises ValueError if it is none, or if its lists are nested too deeply to read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
