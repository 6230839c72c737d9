"""Finds the files and folders that provider options name, by `x-path` in the schemas.

They are names in an option's text, at any depth of a document that an option holds: OpenVINO's load_config has folders
and files among the properties of each device. A document is a mapping, or JSON text, or it lies in a file of its own.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from ortdeploy.providers.catalogue import Provider
from ortdeploy.providers.options import option_facts, options_schema
from ortdeploy.schemas import is_document_file, matches

Way = tuple[str, ...]
_Change = Callable[[Way, str, str], str]

_WHOLE = r"(?s)^(.*)\Z"
"""Where a path stands in a text that says nothing else: it is the whole text."""


class NamedFile(Struct, frozen=True, kw_only=True):
    """A file or folder that options name: the keys down to the text that names it, its kind, and its path.

    Kinds are file, folder, new-file, new-folder, library and document.
    """

    at: Way
    kind: str
    path: str


def named_files(provider: Provider | None, options: Mapping[str, Any]) -> Iterator[NamedFile]:
    """Yield each file or folder that options name.

    A library may be found by its name alone, and a document may be the text itself; then they are no files.
    """
    found: list[NamedFile] = []

    def note(at: Way, kind: str, path: str) -> str:
        found.append(NamedFile(at=at, kind=kind, path=path))
        return path

    _with_changes(provider, options, note)
    yield from found


def with_named_files(
    provider: Provider | None, options: Mapping[str, Any], change: Callable[[str, str], str]
) -> dict[str, Any]:
    """Return options with other paths: what `change` makes of the kind and the path of each."""
    return _with_changes(provider, options, lambda _at, kind, path: change(kind, path))


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
    by_name = kind == "library" and not set(text) & set("/\\\0")  # a NUL would end the name early
    return bool(text) and not by_name and (kind != "document" or is_document_file(text))


def _with_changes(provider: Provider | None, options: Mapping[str, Any], change: _Change) -> dict[str, Any]:
    if provider is None:
        return dict(options)
    schema = options_schema(provider)
    changed: dict[str, Any] = _changed(dict(options), schema, schema, change, ())
    return changed


def _changed(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any], change: _Change, at: Way) -> Any:
    """Return a value with what `change` makes of each path in it; `root` is the schema that `schema` is part of."""
    for part in _parts(schema, root):
        if isinstance(value, dict):
            value = {key: _changed(one, _schema_of(key, part), root, change, (*at, key)) for key, one in value.items()}
        elif isinstance(value, str) and "x-path" in part:
            value = _changed_text(value, part, change, at)
        if isinstance(value, str) and "contentSchema" in part:
            value = _changed_document(value, part["contentSchema"], root, change, at)
    return value


def _parts(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a schema, and those that it refers to or consists of."""
    yield schema
    if "$ref" in schema:
        yield from _parts(root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    for one in (*schema.get("allOf", ()), *schema.get("anyOf", ())):
        yield from _parts(one, root)


def _schema_of(key: str, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a schema says of a key's value."""
    if key in schema.get("properties", {}):
        known: Mapping[str, Any] = schema["properties"][key]
        return known
    return {"allOf": [one for pattern, one in schema.get("patternProperties", {}).items() if matches(pattern, key)]}


def _changed_text(text: str, facts: Mapping[str, Any], change: _Change, at: Way) -> str:
    kind: str = facts["x-path"]
    found = [one for one in re.finditer(facts.get("x-path-in", _WHOLE), text) if _names_file(kind, one[1])]
    changed = [(one.span(1), change(at, kind, one[1])) for one in found]
    for (start, end), path in reversed(changed):
        text = text[:start] + path + text[end:]
    return text


def _changed_document(text: str, schema: Mapping[str, Any], root: Mapping[str, Any], change: _Change, at: Way) -> str:
    """Change what a text names that is a document itself; one that is not JSON is told elsewhere."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return text
    changed = _changed(document, schema, root, lambda _at, kind, path: change(at, kind, path), at)
    return text if changed == document else json.dumps(changed)
