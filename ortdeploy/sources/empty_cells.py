"""Texts that stand for an empty cell, as the manifest says with `empty`."""

from collections.abc import Collection
from typing import Any


def is_empty(text: str, empty: Collection[str]) -> bool:
    """Return whether a text is one of those that stand for an empty cell, perhaps with spaces around it."""
    return text.strip() in empty


def null_if_empty(value: Any, empty: Collection[str]) -> Any:
    """Return a value of JSON or a table with null for texts that stand for an empty cell, also in lists.

    A number of JSON that is kept as it is written is no text, though its class is a kind of str.
    """
    if isinstance(value, list):
        return [null_if_empty(item, empty) for item in value]
    return None if type(value) is str and is_empty(value, empty) else value
