"""Checks a value against a JSON Schema, for the keywords that `schemas/` uses and no others.

jsonschema is the judge: it says what is wrong, and its import takes longer than all the rest of `validate`. What is
found right here is right there, which a test compares. If a schema has a keyword, or a value a type, that is not known
here, nothing is said.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from ortdeploy.schemas import BASE_URI, SUFFIX, is_document_file, load_schema, matches

_MOST_COMPARED = 256  # items that are held against each other, pair by pair

Schema = Mapping[str, Any] | bool


class UnsupportedSchemaError(Exception):
    """A schema or a value goes beyond what is known here."""


def fits(name: str, value: Any) -> bool:
    """Return whether a value is what a schema of `schemas/` describes. Raises UnsupportedSchemaError."""
    return _fits(value, load_schema(name), name)


def fits_schema(schema: Schema, value: Any) -> bool:
    """Return whether a value is what a schema that refers to no other one describes. Raises UnsupportedSchemaError."""
    return _fits(value, schema, None)


def _fits(value: Any, schema: Schema, root: str | None) -> bool:
    """`root` is the name of the schema that references without a name are in."""
    if isinstance(schema, bool):
        return schema
    if type(value) not in _KNOWN:
        raise UnsupportedSchemaError
    for keyword, wanted in schema.items():
        check = check_of(keyword)
        if check is not None and not check(value, wanted, schema, root):
            return False
    return True


def check_of(keyword: str) -> "_Check | None":
    """Return what checks a keyword of JSON Schema; None if it asks for nothing. Raises UnsupportedSchemaError."""
    check = _CHECKS.get(keyword)
    if check is None and keyword not in _ANNOTATIONS and not keyword.startswith("x-"):
        raise UnsupportedSchemaError
    return check


_Check = Callable[[Any, Any, Mapping[str, Any], str | None], bool]
_KNOWN = frozenset({dict, list, str, int, float, bool, type(None)})
_ANNOTATIONS = frozenset({
    "$defs", "$id", "$schema", "contentMediaType", "default", "description", "else", "examples", "then", "title",
})  # fmt: skip
"""What asks for nothing by itself."""
_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "array": lambda value: isinstance(value, list),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "string": lambda value: isinstance(value, str),
}


def _equal(one: Any, other: Any) -> bool:
    """Compare as JSON does: true is not 1, and 1 is 1.0."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(value, other[key]) for key, value in one.items())
    return one is other or (isinstance(one, bool) == isinstance(other, bool) and bool(one == other))


def _of(kind: str, holds: Callable[[Any, Any], bool]) -> "_Check":
    """Return the check of a keyword that speaks of values of one type only."""
    is_kind = _TYPES[kind]
    return lambda value, wanted, _schema, _root: not is_kind(value) or bool(holds(value, wanted))


def _multiple(value: Any, wanted: Any) -> bool:
    if not isinstance(wanted, int) or not isinstance(value, int):
        raise UnsupportedSchemaError
    return value % wanted == 0


def _unique(value: Any, wanted: Any) -> bool:
    if len(value) > _MOST_COMPARED:
        raise UnsupportedSchemaError
    return not wanted or not any(_equal(one, other) for at, one in enumerate(value) for other in value[:at])


def _dependent(value: Any, wanted: Any) -> bool:
    return all(key not in value or all(other in value for other in others) for key, others in wanted.items())


def _properties(value: Any, wanted: Any, _: Any, root: str | None) -> bool:
    if not isinstance(value, dict):
        return True
    return all(_fits(one, wanted[key], root) for key, one in value.items() if key in wanted)


def _pattern_properties(value: Any, wanted: Any, _: Any, root: str | None) -> bool:
    if not isinstance(value, dict):
        return True
    return all(
        _fits(one, schema, root)
        for pattern, schema in wanted.items()
        for key, one in value.items()
        if matches(pattern, _text(key))
    )


def _additional(value: Any, wanted: Any, schema: Mapping[str, Any], root: str | None) -> bool:
    if not isinstance(value, dict):
        return True
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    others = (key for key in value if key not in known and not any(matches(one, _text(key)) for one in patterns))
    return all(_fits(value[key], wanted, root) for key in others)


def _property_names(value: Any, wanted: Any, _: Any, root: str | None) -> bool:
    return not isinstance(value, dict) or all(_fits(key, wanted, root) for key in value)


def _text(key: Any) -> str:
    if not isinstance(key, str):
        raise UnsupportedSchemaError
    return key


def _items(value: Any, wanted: Any, schema: Mapping[str, Any], root: str | None) -> bool:
    if not isinstance(value, list):
        return True
    return all(_fits(one, wanted, root) for one in value[len(schema.get("prefixItems", ())) :])


def _prefix_items(value: Any, wanted: Any, _: Any, root: str | None) -> bool:
    return not isinstance(value, list) or all(_fits(one, schema, root) for one, schema in zip(value, wanted))  # noqa: B905  a list may be shorter


def _contains(value: Any, wanted: Any, schema: Mapping[str, Any], root: str | None) -> bool:
    if "minContains" in schema or "maxContains" in schema:
        raise UnsupportedSchemaError
    return not isinstance(value, list) or any(_fits(one, wanted, root) for one in value)


def _if(value: Any, wanted: Any, schema: Mapping[str, Any], root: str | None) -> bool:
    return _fits(value, schema.get("then" if _fits(value, wanted, root) else "else", True), root)


def _ref(value: Any, wanted: Any, _: Any, root: str | None) -> bool:
    name, _, pointer = wanted.removeprefix(BASE_URI).partition("#")
    root = name.removesuffix(SUFFIX) if name else root
    if root is None or "~" in pointer or "%" in pointer:
        raise UnsupportedSchemaError
    schema: Any = load_schema(root)
    for key in pointer.split("/")[1:]:
        schema = schema[key]
    return _fits(value, schema, root)


def _content(value: Any, wanted: Any, schema: Mapping[str, Any], root: str | None) -> bool:
    if not isinstance(value, str) or schema.get("contentMediaType") != "application/json" or is_document_file(value):
        return True
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        return False
    return _fits(document, wanted, root)


_CHECKS: Mapping[str, _Check] = {
    "$ref": _ref,
    "additionalProperties": _additional,
    "allOf": lambda value, wanted, _, root: all(_fits(value, one, root) for one in wanted),
    "anyOf": lambda value, wanted, _, root: any(_fits(value, one, root) for one in wanted),
    "const": lambda value, wanted, *_: _equal(value, wanted),
    "contains": _contains,
    "contentSchema": _content,
    "dependentRequired": _of("object", _dependent),
    "enum": lambda value, wanted, *_: any(_equal(value, one) for one in wanted),
    "exclusiveMinimum": _of("number", lambda value, wanted: not value <= wanted),
    "if": _if,
    "items": _items,
    "maximum": _of("number", lambda value, wanted: not value > wanted),
    "maxItems": _of("array", lambda value, wanted: len(value) <= wanted),
    "maxLength": _of("string", lambda value, wanted: len(value) <= wanted),
    "minimum": _of("number", lambda value, wanted: not value < wanted),
    "minItems": _of("array", lambda value, wanted: len(value) >= wanted),
    "minLength": _of("string", lambda value, wanted: len(value) >= wanted),
    "maxProperties": _of("object", lambda value, wanted: len(value) <= wanted),
    "minProperties": _of("object", lambda value, wanted: len(value) >= wanted),
    "multipleOf": _of("number", _multiple),
    "not": lambda value, wanted, _, root: not _fits(value, wanted, root),
    "pattern": _of("string", lambda value, wanted: matches(wanted, value)),
    "patternProperties": _pattern_properties,
    "prefixItems": _prefix_items,
    "properties": _properties,
    "propertyNames": _property_names,
    "required": _of("object", lambda value, wanted: all(key in value for key in wanted)),
    "type": lambda value, wanted, *_: any(
        _TYPES[name](value) for name in ([wanted] if isinstance(wanted, str) else wanted)
    ),
    "uniqueItems": _of("array", _unique),
}
