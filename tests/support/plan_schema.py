"""Makes `schemas/plan.schema.json` of the plan's dataclasses: `python tests/support/plan_schema.py > schemas/plan.schema.json`.

A test compares the two, so that a field cannot come, go or change its type without the schema.
"""

import json
import types
from collections.abc import Collection, Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

from msgspec import Struct

from ortdeploy.facts.variants import ENVIRONMENT, FLAG, KEPT, OTHERWISE, WHEN
from ortdeploy.manifest.pipelines import DIFFUSION, GENERATE, TEXT_TO_IMAGE
from ortdeploy.plan.plan_file import ALWAYS_SAID, LATER, STEP_NAMES
from ortdeploy.plan.steps import FORMAT_VERSION, Fact, FinishedJob, JobInput, PlannedCheck
from ortdeploy.planning.plan_file.plan_writing import LEFT_OUT
from ortdeploy.planning.plan_file.saved_plan import BOUND, OPEN
from ortdeploy.schemas import BASE_URI, SUFFIX
from ortdeploy.sinks.catalogue import SINKS
from ortdeploy.sources.catalogue import SOURCES

LARGEST = 2**63 - 1
SHA256 = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
NAME = {"type": "string", "minLength": 1}
FAILED = {"anyOf": [{"type": "integer", "minimum": 0, "maximum": LARGEST}, {"type": "string", "pattern": "^[0-9.]+%$"}]}
COUNT = {"type": "integer", "minimum": 1, "maximum": 64}

SETTINGS = {one.name: one.type for form in sorted(SOURCES) for one in SOURCES[form].SETTINGS}
"""The keys of an input that only some formats have, with the types of their values."""

SAID: dict[tuple[str, str], dict[str, Any]] = {
    ("OpenSession", "sha256"): SHA256,
    ("OpenSession", "use"): {"enum": ["first", "all"]},
    ("OpenSession", "on_unavailable"): {"enum": ["fail", "next"]},
    ("OpenSession", "cpu_fallback"): {
        "anyOf": [{"type": "integer", "minimum": 0, "maximum": LARGEST}, {"type": "string", "pattern": "^(forbid|warn|allow|[0-9.]+%)$"}]
    },
    ("OpenSession", "candidates"): {"minItems": 1},
    ("PlannedSession", "count"): COUNT,
    ("PlannedSession", "callers"): COUNT,
    ("PlannedSession", "providers"): {"minItems": 1},
    ("PlannedProvider", "name"): NAME,
    ("PlannedDevice", "kind"): {"enum": ["CPU", "GPU", "NPU"]},
    ("LoadAdapter", "sha256"): SHA256,
    ("JobInput", "format"): {"enum": sorted(SOURCES)},
    ("JobOutput", "format"): {"enum": sorted(SINKS)},
    ("Batching", "size"): {"minimum": 1},
    ("Batching", "fixed"): {"minimum": 1},
    ("Batching", "last"): {"enum": ["short", "pad", "drop"]},
    ("Batching", "batches_per_read"): {"minimum": 1},
    ("Batching", "rows_per_part"): {"minimum": 1},
    ("JobErrors", "on_nan"): {"enum": ["fail", "skip", "keep"]},
    ("JobErrors", "max_failed"): FAILED,
    ("RunJob", "identity"): {"required": ["model"]},
    ("JobErrors", "progress_timeout"): {"exclusiveMinimum": 0},
    ("JobErrors", "run_timeout"): {"exclusiveMinimum": 0},
    ("PlannedWireStep", "kind"): {"enum": ["run", "do", "each", "op"]},
    ("PlannedPreset", "kind"): {"enum": [TEXT_TO_IMAGE, DIFFUSION, GENERATE]},
    ("Fact", "kind"): NAME,
}  # fmt: skip
"""What the types do not say."""


def schema() -> dict[str, Any]:
    """Return the schema of a plan file."""
    parts: dict[str, Any] = {}
    steps = [_reference(kind, parts) for kind in STEP_NAMES]
    path = {"type": "string", "minLength": 1}
    table = {
        "description": "The table beside the plan file that has the list: gzip of JSON lines, one for each file.",
        **_object({"table": NAME, "sha256": SHA256, "files": {"type": "integer", "minimum": 0, "maximum": LARGEST}}),
    }
    file = {
        "type": "array",
        "minItems": 4,
        "maxItems": 4,
        "prefixItems": [
            {"type": "string"},
            {"type": "integer", "minimum": 0, "maximum": LARGEST},
            {"type": "integer", "minimum": -LARGEST - 1, "maximum": LARGEST},
            {"type": ["string", "null"], "pattern": SHA256["pattern"]},
        ],
    }
    of_plan = {
        "manifest": {"title": "Manifest", "description": "Its path from the plan file's folder, or from --root.", **path},
        "options": {
            "title": "What the command line said when the plan was made",
            **_object(
                {
                    "profile": {"type": ["string", "null"]},
                    "sets": {"type": "array", "items": {"type": "string", "pattern": "^[^=]+="}},
                    "overlays": {"type": "array", "items": path},
                    "roots": {"description": "Folders that apply must be given too, with --allow-root.", "type": "array", "items": path},
                    "jobs": {"description": "null: all.", "type": ["array", "null"], "items": NAME},
                    "starts_over": {
                        "description": "The run of each job that --new-run starts over.",
                        "type": "object",
                        "additionalProperties": NAME,
                    },
                    "choice": {
                        "description": "How the profile was chosen, and the facts that all when: asked for.",
                        **_object(
                            {
                                "reason": {"enum": [FLAG, ENVIRONMENT, WHEN, OTHERWISE, KEPT]},
                                "facts": {"type": "object", "additionalProperties": {"type": ["string", "integer", "boolean", "null"]}},
                            }
                        ),
                    },
                },
                optional={"choice"},
            ),
        },
        "facts": {"title": "What the plan rests on", "type": "array", "items": _reference(Fact, parts)},
        "inputs": {
            "title": "The input files of each job",
            "description": "Path from the manifest, size, modification time in ns or an object's version, and SHA-256.",
            "type": "object",
            "additionalProperties": {"anyOf": [{"type": "array", "items": file}, table]},
        },
        "rows": {
            "title": "Where rows begin in the text files of each job",
            "description": "Of each file of inputs its rows, and places near the borders of parts; packed. Shards go by it.",
            "type": "object",
            "additionalProperties": {"anyOf": [{"type": "string", "pattern": "^[A-Za-z0-9+/]+=*$"}, table]},
        },
        "deployment": {"title": "Name", "type": "string"},
        "gates": {"title": "Golden checks that run first", "type": "array", "items": _reference(PlannedCheck, parts)},
        "steps": {"title": "What would run", "type": "array", "items": {"anyOf": steps}},
        "finished": {"title": "Jobs that are finished already", "type": "array", "items": _reference(FinishedJob, parts)},
    }  # fmt: skip
    whole = {
        "format_version": {"title": "Format version", "const": FORMAT_VERSION},
        "kind": {
            "title": "Kind",
            "description": "bound: files, rows and parts are fixed. open: rows and parts are not, nor files that were not there.",
            "enum": [BOUND, OPEN],
        },
        "made_by": {"title": "Made by", "type": "string"},
        "plans": {"title": "One plan for each manifest", "type": "array", "items": _object(of_plan)},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"{BASE_URI}plan{SUFFIX}",
        "title": "ortdeploy plan file",
        "description": (
            "What ortdeploy plan --out saves. Nothing of it is carried out: ortdeploy apply plans again and refuses a "
            "file that says something else."
        ),
        **_object(whole),
        "$defs": dict(sorted(parts.items())),
    }


def _object(properties: Mapping[str, Any], optional: Collection[str] = ()) -> dict[str, Any]:
    return {
        "type": "object",
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
        "properties": dict(properties),
    }


def _reference(kind: type[Struct], parts: dict[str, Any]) -> dict[str, str]:
    """Return a reference to a record, whose schema is put among the parts."""
    name = kind.__name__
    if name not in parts:
        parts[name] = {}
        hints, late = get_type_hints(kind), [*LATER.get(kind, ())]
        step = {"step": {"const": STEP_NAMES[kind]}} if kind in STEP_NAMES else {}
        shown = [name for name in kind.__struct_fields__ if name not in LEFT_OUT.get(kind, ())]
        if kind is JobInput:
            hints |= SETTINGS
            shown = [one for field in shown for one in (SETTINGS if field == "settings" else [field])]
            late += SETTINGS.keys() - ALWAYS_SAID.keys()
        parts[name] = _object(step | {field: _of(hints[field], parts, (name, field)) for field in shown}, late)
    return {"$ref": f"#/$defs/{name}"}


def _of(hint: Any, parts: dict[str, Any], at: tuple[str, str]) -> dict[str, Any]:
    said = SAID.get(at, {})
    if {"enum", "anyOf", "pattern"} & said.keys():
        return said
    return {**_of_type(hint, parts), **said}


def _of_type(hint: Any, parts: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return {}
    if isinstance(hint, type) and issubclass(hint, Struct):
        return dict(_reference(hint, parts))
    if origin in {Union, types.UnionType}:
        return _of_union([_of_type(one, parts) for one in arguments])
    if origin is tuple and arguments[1:] == (Ellipsis,):
        return {"type": "array", "items": _of_type(arguments[0], parts)}
    if origin is tuple:
        size = len(arguments)
        prefix = [_of_type(one, parts) for one in arguments]
        return {"type": "array", "minItems": size, "maxItems": size, "prefixItems": prefix}
    if origin is not None and issubclass(origin, Mapping):
        inner = _of_type(arguments[1], parts)
        return {"type": "object", "additionalProperties": inner} if inner else {"type": "object"}
    return dict(_PLAIN[hint])


_PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer", "minimum": 0, "maximum": LARGEST},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
}


def _of_union(choices: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one schema with several types where only one of them says more than its type; else a choice."""
    richer = [one for one in choices if one.keys() - {"type"}]
    if any("type" not in one for one in choices) or len(richer) > 1:
        return {"anyOf": choices}
    merged = {key: value for one in richer for key, value in one.items()}
    return {**merged, "type": [one["type"] for one in choices]}


if __name__ == "__main__":
    print(json.dumps(schema(), indent=2))  # noqa: T201  the tool's result
