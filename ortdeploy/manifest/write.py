"""Writes values as YAML that reads back as the same values, in every YAML version."""

import json
import re
from typing import Any

from ortdeploy.manifest.scalars import resolve_plain

_PLAIN = re.compile(r"[$A-Za-z0-9_][A-Za-z0-9_./+-]*\Z")


def scalar(value: Any) -> str:
    """Return one value; text is left plain where nobody can misread it."""
    if isinstance(value, str):
        plain = resolve_plain(value)
        return value if _PLAIN.match(value) and plain.value == value and not plain.problem else _quoted(value)
    return "null" if value is None else json.dumps(value)


def _quoted(text: str) -> str:
    """Quote as JSON does; signs that YAML forbids are escaped, and never as halves of a surrogate pair."""
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(sign if sign.isprintable() else f"\\U{ord(sign):08x}" for sign in quoted)


def flow(value: Any) -> str:
    """Return a list or mapping on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{scalar(key)}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(flow(item) for item in value) + "]"
    return scalar(value)


def block(value: dict[str, Any], indent: int = 0) -> str:
    """Return a mapping over several lines, its innermost mappings and lists on one line each."""
    lines = []
    for key, item in value.items():
        nested = isinstance(item, dict) and any(isinstance(inner, dict) for inner in item.values())
        text = f"\n{block(item, indent + 2)}" if nested else f" {flow(item)}\n"
        lines.append(f"{' ' * indent}{scalar(key)}:{text}")
    return "".join(lines)
