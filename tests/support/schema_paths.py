"""Manifests that name one path each, made from the schemas: one for every key that takes a path."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from ortdeploy.schemas import load_schema, schema_names

MARK = "named/here"
Way = tuple[Any, ...]
_DEEPEST = 14
_KEYS = {"Components": "unet"}
"""Keys of mappings whose keys are known, by their titles."""


@cache
def _root() -> dict[str, Any]:
    return load_schema("deployment")


def _resolved(schema: Any) -> Any:
    while isinstance(schema, dict) and str(schema.get("$ref", "")).startswith("#/$defs/"):
        schema = {
            **_root()["$defs"][schema["$ref"].rpartition("/")[2]],
            **{k: v for k, v in schema.items() if k != "$ref"},
        }
    return schema


def _is_path(schema: Mapping[str, Any]) -> bool:
    return schema.get("$ref") == "#/$defs/path" or "x-path" in schema


def marked(schema: Mapping[str, Any]) -> str:
    """Return the text of an option with the path in its place."""
    if schema.get("x-path") == "document":
        return f"{MARK}.json"
    inside = schema.get("x-path-in")
    example = next(iter(schema.get("examples", [])), None)
    found = re.search(inside, example) if inside and isinstance(example, str) else None
    return MARK if found is None else f"{found.string[: found.start(1)]}{MARK}{found.string[found.end(1) :]}"


def least(schema: Any) -> Any:
    """Return a small value that a schema takes."""
    schema = _resolved(schema)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if "enum" in schema:
        return schema["enum"][0]
    if "properties" in schema and schema.get("type", "object") == "object":
        return {name: least(schema["properties"].get(name, {})) for name in schema.get("required", [])}
    if schema.get("examples"):
        return schema["examples"][0]
    if "anyOf" in schema:
        return least(schema["anyOf"][0])
    kinds = {"string": "a", "integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}
    kind = schema.get("type", "string")
    return kinds[kind if isinstance(kind, str) else kind[0]]


def ways(schema: Any, seen: tuple[str, ...] = (), depth: int = 0) -> Iterator[tuple[Any, Way, str]]:
    """Yield values with the mark in the place of one path, where that is, and the name of its key."""
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return
    name = str(schema.get("$ref", ""))
    if _is_path(schema):
        yield marked(schema), (), ""
    elif name.startswith("#/$defs/"):
        if name not in seen:
            yield from ways(_resolved(schema), (*seen, name), depth + 1)
    else:
        yield from _through_keys(schema, seen, depth + 1)
        yield from _through_alternatives(schema, seen, depth + 1)


def _through_keys(schema: Any, seen: tuple[str, ...], depth: int) -> Iterator[tuple[Any, Way, str]]:
    for key, inner in schema.get("properties", {}).items():
        for value, at, leaf in ways(inner, seen, depth):
            yield {**least({**schema, "examples": []}), key: value}, (key, *at), leaf or key
    name = _KEYS.get(schema.get("title", ""), "n")
    for value, at, leaf in ways(schema.get("additionalProperties"), seen, depth):
        yield {name: value}, (name, *at), leaf
    for value, at, leaf in ways(schema.get("items"), seen, depth):
        yield [value], (0, *at), leaf


def _through_alternatives(schema: Any, seen: tuple[str, ...], depth: int) -> Iterator[tuple[Any, Way, str]]:
    for one in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from ways(one, seen, depth)
    base = least({**schema, "examples": []}) if "properties" in schema else {}
    for one in schema.get("allOf", ()):
        conditions = one.get("if", {}).get("properties", {}).items()
        given = {key: value["const"] for key, value in conditions if "const" in value}
        for value, at, leaf in ways(one.get("then", {}) if "if" in one else one, seen, depth):
            made = {**base, **value, **given} if isinstance(value, dict) else value
            yield made, at, f"{'.'.join(given.values())} {leaf}"


def _manifest(given: Any) -> dict[str, Any]:
    document: dict[str, Any] = {**given, "version": 1}
    document.setdefault("models", {}).setdefault("m", {"path": "m.onnx"})
    if "providers" in document:
        document["models"]["m"]["providers"] = next(iter(document["providers"]))
    for job in document.get("jobs", {}).values():
        job["model"] = "m"
        for key, path in (("input", "x.npy"), ("output", "out")):
            if isinstance(job.setdefault(key, {}), dict):
                job[key].setdefault("path", path)
    for pipeline in document.get("pipelines", {}).values():
        if "steps" in pipeline:
            pipeline.setdefault("outputs", {"y": "$y"})
        else:
            pipeline.setdefault("preset", "text-to-image")
            pipeline.setdefault("from", "folder")
    return document


def of_providers() -> Iterator[tuple[dict[str, Any], Way, str]]:
    """Yield a manifest for each option of a provider that takes a path."""
    for name in schema_names():
        if name.startswith("providers/"):
            provider = name.removeprefix("providers/")
            for key, option in load_schema(name)["properties"].items():
                if "x-path" in option and "x-removed" not in option:
                    entry = {"provider": provider, "options": {key: marked(option)}}
                    document = _manifest({"models": {"m": {"path": "m.onnx", "providers": [entry, "CPU"]}}})
                    yield document, ("models", "m", "providers", 0, "options", key), f"{provider}.{key}"


def libraries() -> frozenset[str]:
    """Return the keys of options that take a library: a bare name is looked for by the system, and is no path."""
    return frozenset(
        f"{name.removeprefix('providers/')}.{key}"
        for name in schema_names()
        if name.startswith("providers/")
        for key, option in load_schema(name)["properties"].items()
        if option.get("x-path") == "library"
    )


def manifests() -> Iterator[tuple[dict[str, Any], Way, str]]:
    """Yield manifests with the mark in the place of one path, where that is, and the name of its key."""
    for value, at, leaf in ways(_root()):
        yield _manifest(json.loads(json.dumps(value))), at, f"{at[0]} {leaf}"
    yield from of_providers()


def put(document: Any, at: Way, path: str) -> Any:
    """Return a copy of a manifest with a path in the place of the mark."""
    copy = json.loads(json.dumps(document))
    node = copy
    for key in at[:-1]:
        node = node[key]
    node[at[-1]] = node[at[-1]].replace(MARK, path)
    return copy
