"""JSON that something else may have written or damaged."""

import json
from typing import Any


def read_json(text: str | bytes) -> Any:
    """Return what a JSON text says. Raises ValueError if it is none, or if its lists are nested too deeply to read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def object_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of these pairs. Raises ValueError for a repeated name, of which json would keep the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f'"{next(name for name in names if names.count(name) > 1)}" is there twice')
    return found
