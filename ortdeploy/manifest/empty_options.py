"""Treats empty provider options, `options:` or `options: []`, as no options."""

from collections.abc import Iterator
from typing import Any


def drop_empty_options(data: Any) -> None:
    """Take such options out of the chains of a document, in place, before its shape is checked."""
    for entry in _entries(data):
        if isinstance(entry, dict) and entry.get("options", False) in (None, []):
            del entry["options"]


def _entries(data: Any) -> Iterator[Any]:
    """Yield the entries of every provider chain, wherever one may be written."""
    chains = list(_values(data, "providers"))
    for model in _values(data, "models"):
        chains += [_get(model, "providers"), *(_get(one, "providers") for one in _list(model, "sessions"))]
    for pipeline in _values(data, "pipelines"):
        chains += [_get(pipeline, "providers"), *(_get(one, "providers") for one in _values(pipeline, "components"))]
    for chain in chains:
        yield from chain if isinstance(chain, list) else ()


def _values(data: Any, key: str) -> list[Any]:
    found = _get(data, key)
    return list(found.values()) if isinstance(found, dict) else []


def _get(data: Any, key: str) -> Any:
    return data.get(key) if isinstance(data, dict) else None


def _list(data: Any, key: str) -> list[Any]:
    found = _get(data, key)
    return found if isinstance(found, list) else []
