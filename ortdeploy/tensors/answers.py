"""The columns that answers of a model have, by the JSON Schema that they fit.

A property that every answer has, and that is of one plain type, is a column of this type. Every other one is a text:
its JSON, `null` where an answer lacks it.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

_PLAIN = {"string": "string", "integer": "int64", "number": "float64", "boolean": "bool"}
_JSON = "json"
_LEAST = -(2**63)
_OF: Mapping[str, tuple[type, ...]] = {"string": (str,), "int64": (int,), "float64": (int, float), "bool": (bool,)}


class AnswerError(ValueError):
    """Why a text is no answer, in words."""


def columns_of(schema: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the columns of answers with their element types; none if the schema is not one of objects."""
    return {name: "string" if kind == _JSON else kind for name, kind in _kinds(schema).items()}


def read_answer(text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of an answer by column. Raises AnswerError."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AnswerError(f"the text is no whole JSON text: {error}") from error
    if not isinstance(found, dict):
        raise AnswerError("the text is no JSON object")
    return {name: _value(name, kind, found) for name, kind in _kinds(schema).items()}


def _kinds(schema: Mapping[str, Any] | None) -> dict[str, str]:
    properties, always = (schema or {}).get("properties"), (schema or {}).get("required")
    if not isinstance(properties, dict):
        return {}
    required = always if isinstance(always, list) else []
    return {name: _kind(one) if name in required else _JSON for name, one in properties.items()}


def _kind(said: Any) -> str:
    """Return the element type of a property, or that it is kept as JSON."""
    if not isinstance(said, dict):
        return _JSON
    texts = said.get("enum", [said["const"]] if "const" in said else None)
    if isinstance(texts, list) and texts and all(isinstance(one, str) for one in texts):
        return "string"
    kind = said.get("type")
    return _PLAIN.get(kind, _JSON) if isinstance(kind, str) else _JSON


def _value(name: str, kind: str, found: Mapping[str, Any]) -> Any:
    value: Any = found.get(name)
    if kind == _JSON:
        return json.dumps(value, ensure_ascii=False)
    fits = isinstance(value, _OF[kind]) and (kind == "bool" or not isinstance(value, bool))
    if not fits or (kind == "int64" and not _LEAST <= value < -_LEAST) or (kind == "float64" and not _is_finite(value)):
        raise AnswerError(f"{name} is {json.dumps(value)[:60]}, which is no {kind}")
    return value


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # of an integer beyond all doubles
        return False
