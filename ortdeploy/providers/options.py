"""Turns the values of provider, session and run options into the text that is parsed, as their schemas describe."""

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ortdeploy.providers.catalogue import Provider
from ortdeploy.schemas import is_document_file, load_schema
from ortdeploy.units import parse_size

_WHOLE = r"(?s)^(.*)$"
"""Where a path stands in an option that says nothing else: it is the whole text."""

_BOOLEANS = {"1/0": ("1", "0"), "true/false": ("true", "false"), "True/False": ("True", "False")}


def options_schema(provider: Provider) -> dict[str, Any]:
    """Return the schema of a provider's options; the x- keys are facts that JSON Schema has no words for."""
    return load_schema(f"providers/{provider.short}")


def option_facts(provider: Provider | None, option: str) -> dict[str, Any]:
    """Return what is known of one option; nothing of an unknown option, or an option of an unknown provider."""
    facts: dict[str, Any] = options_schema(provider)["properties"].get(option, {}) if provider else {}
    return facts


def serialise(provider: Provider | None, options: Mapping[str, Any]) -> dict[str, str]:
    """Return options as the text that this provider parses: its booleans, sizes in bytes, mappings as JSON.

    Without a known provider booleans are "1" and "0", as in ONNX Runtime's own session config entries.
    """
    yes, no = _BOOLEANS[options_schema(provider)["x-booleans"] if provider else "1/0"]
    return {key: _text(value, option_facts(provider, key), yes, no) for key, value in options.items()}


def with_texts(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return session or run options whose config entries are the text that ONNX Runtime parses."""
    return {**options, "config": serialise(None, options["config"])} if "config" in options else dict(options)


def _text(value: Any, facts: Mapping[str, Any], yes: str, no: str) -> str:
    if isinstance(value, bool):
        return yes if value else no
    if isinstance(value, dict | list):
        return json.dumps(value)
    size = parse_size(value) if isinstance(value, str) and "anyOf" in facts else None
    return str(value if size is None else size)


def named_files(provider: Provider | None, options: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield option, kind and path of each file that an option names.

    Kinds are file, folder, new-file, new-folder, library and document. A library may be found by its name alone, and a
    document may be the text itself.
    """
    for option, kind, found in _places(provider, options):
        yield from ((option, kind, one[1]) for one in found)


def with_named_files(
    provider: Provider | None, options: Mapping[str, Any], change: Callable[[str, str], str]
) -> dict[str, Any]:
    """Return options with other paths: what `change` makes of the kind and the path of each."""
    changed = dict(options)
    for option, kind, found in _places(provider, options):
        for one in reversed(found):
            text = changed[option]
            changed[option] = text[: one.start(1)] + change(kind, one[1]) + text[one.end(1) :]
    return changed


def _places(provider: Provider | None, options: Mapping[str, Any]) -> Iterator[tuple[str, str, list[re.Match[str]]]]:
    """Yield each option that names files, their kind, and where the paths stand in its text."""
    for option, text in options.items():
        facts = option_facts(provider, option)
        kind = facts.get("x-path")
        if kind is not None and isinstance(text, str):
            found = re.finditer(facts.get("x-path-in", _WHOLE), text)
            yield option, kind, [one for one in found if _names_file(kind, one[1])]


def needed_libraries(provider: Provider | None, options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each option whose value decides a library that the provider looks up by its name, and that name here."""
    for option, value in options.items():
        facts = option_facts(provider, option)
        if str(value) in facts.get("x-library", {}):
            yield option, _library_file(facts["x-library"][str(value)])
        elif facts.get("x-path") == "library" and isinstance(value, str):
            found = (one[1] for one in re.finditer(facts.get("x-path-in", _WHOLE), value))
            yield from ((option, name) for name in found if not _names_file("library", name))


def _library_file(base: str) -> str:
    """Return the file of a library on a system like this one."""
    prefix, suffix = {"win32": ("", ".dll"), "darwin": ("lib", ".dylib")}.get(sys.platform, ("lib", ".so"))
    return f"{prefix}{base}{suffix}"


def _names_file(kind: str, text: str) -> bool:
    by_name = kind == "library" and "/" not in text and "\\" not in text
    return bool(text) and not by_name and (kind != "document" or is_document_file(text))


def render_options(provider: Provider) -> str:
    """Return the options part of a provider's page."""
    lines = []
    for name, facts in options_schema(provider)["properties"].items():
        lines += [f"  {name}: {_type(facts)}", f"      {facts['description']}", f"      {_history(facts)}"]
    return "\n".join(["Options:", *lines]) if lines else "It has no provider options."


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
    return f"{'; '.join(parts)} (source: {facts['x-source']})"
