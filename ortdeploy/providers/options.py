"""Turns the values of provider, session and run options into the text that is parsed, as their schemas describe."""

import json
from collections.abc import Mapping
from typing import Any

from ortdeploy.providers.catalogue import Provider
from ortdeploy.schemas import load_schema
from ortdeploy.units import parse_size

EXTERNAL_DATA_FOLDER = "session.model_external_initializers_file_folder_path"
"""The session option that says where external data lies, if not beside the model."""

SHRINKAGE = "memory.enable_memory_arena_shrinkage"
"""The run option with the arenas that give unused memory back after a run, such as `cpu:0;gpu:0`."""

_BOOLEANS = {"1/0": ("1", "0"), "true/false": ("true", "false"), "True/False": ("True", "False")}


def options_schema(provider: Provider) -> dict[str, Any]:
    """Return the schema of a provider's options; the x- keys are facts that JSON Schema has no words for."""
    return load_schema(f"providers/{provider.short}")


def option_facts(provider: Provider | None, option: str) -> dict[str, Any]:
    """Return what is known of one option; nothing of an unknown option, or an option of an unknown provider."""
    facts: dict[str, Any] = options_schema(provider)["properties"].get(option, {}) if provider else {}
    return facts


def model_caches(provider: Provider | None) -> dict[str, dict[str, Any]]:
    """Return the options of a provider that name a folder of compiled models, each with what its schema says of that.

    `when`: the option that turns it on. `apart`: options that are part of the names of its files. `metadata`: the entry
    in the model's metadata that is its name there; None: names in the graph are.
    """
    known = options_schema(provider)["properties"] if provider else {}
    return {option: facts["x-cache"] for option, facts in known.items() if "x-cache" in facts}


def computed_formats(provider: Provider | None) -> list[dict[str, Any]] | None:
    """Return the formats in which a provider computes; None if nobody knows. `deployment/number_formats` reads them."""
    found: list[dict[str, Any]] | None = options_schema(provider).get("x-computes") if provider else None
    return found


def serialise(provider: Provider | None, options: Mapping[str, Any]) -> dict[str, str]:
    """Return options as the text that this provider parses: its booleans, sizes in bytes, mappings as JSON.

    Without a known provider booleans are "1" and "0", as in ONNX Runtime's own session config entries.
    """
    yes, no = _BOOLEANS[options_schema(provider)["x-booleans"] if provider else "1/0"]
    return {key: _text(value, option_facts(provider, key), yes, no) for key, value in options.items()}


def with_texts(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return session or run options whose config entries are the text that ONNX Runtime parses."""
    return {**options, "config": serialise(None, options["config"])} if "config" in options else dict(options)


def without_cpu_arena(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return run options for a session that has no arena on the CPU: ONNX Runtime refuses runs that would shrink it."""
    config = run.get("config", {})
    others = [arena for arena in config.get(SHRINKAGE, "").split(";") if arena and not arena.startswith("cpu")]
    left = {name: text for name, text in config.items() if name != SHRINKAGE}
    return {**run, "config": {**left, **({SHRINKAGE: ";".join(others)} if others else {})}}


def _text(value: Any, facts: Mapping[str, Any], yes: str, no: str) -> str:
    if isinstance(value, bool):
        return yes if value else no
    if isinstance(value, dict | list):
        return json.dumps(value)
    size = parse_size(value) if isinstance(value, str) and "anyOf" in facts else None
    return str(value if size is None else size)


def render_options(provider: Provider, *, with_sources: bool = True) -> str:
    """Return the options part of a provider's page; the sources stand at its end, each once, with a number."""
    options = options_schema(provider)["properties"]
    lines = [one["detail"] for one in computed_formats(provider) or ()]
    lines = ["Numbers:", *(f"  {one}" for one in lines), ""] if lines else []
    if not options:
        return "\n".join([*lines, "It has no provider options."])
    lines.append("Options:")
    sources = list(dict.fromkeys(facts["x-source"] for facts in options.values())) if with_sources else []
    for name, facts in options.items():
        number = f" [{sources.index(facts['x-source']) + 1}]" if with_sources else ""
        lines += [f"  {name}: {_type(facts)}", f"      {facts['description']}", f"      {_history(facts)}{number}"]
    lines += ["", "Sources:"] if sources else []
    lines += [f"  [{number}] {source}" for number, source in enumerate(sources, start=1)]
    return "\n".join(lines)


def _type(facts: Mapping[str, Any]) -> str:
    if "enum" in facts:
        kind = " | ".join(map(str, facts["enum"]))
    elif "anyOf" in facts:
        kind = " or ".join(branch["type"] for branch in facts["anyOf"])
    else:
        kind = str(facts.get("type", "any")) if isinstance(facts.get("type"), str) else "any"
    bounds = [f"at least {facts['minimum']}"] if "minimum" in facts else []
    bounds += [f"at most {facts['maximum']}"] if "maximum" in facts else []
    default = f", default {json.dumps(facts['default'])}" if "default" in facts else ""
    return ", ".join([kind, *bounds]) + default


def _history(facts: Mapping[str, Any]) -> str:
    parts = [f"since {facts['x-since']}"]
    parts += [f"deprecated in {facts['x-deprecated']}"] if "x-deprecated" in facts else []
    parts += [f"removed in {facts['x-removed']}"] if "x-removed" in facts else []
    parts += ["relative to the manifest"] if "x-path" in facts else []
    parts += [f"{facts['x-delivery']} only"] if facts.get("x-delivery") in {"built-in", "plugin"} else []
    return "; ".join(parts)
