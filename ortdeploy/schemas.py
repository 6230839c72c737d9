"""Finds the JSON Schemas: inside the installed package, or beside it in a checkout."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).parent
SUFFIX = ".schema.json"
BASE_URI = "https://ortdeploy.dev/schemas/"


@cache
def schema_folder() -> Path:
    """Return the folder of the schemas; a wheel carries it in the package, an editable install finds the checkout's."""
    packaged = _PACKAGE / "schemas"
    return packaged if packaged.is_dir() else _PACKAGE.parent / "schemas"


def is_document_file(text: str) -> bool:
    """Return whether an option that takes a document names a file of it instead."""
    return text.endswith(".json")


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern of JSON Schema, whose `$` is the end of a text; that of Python is before a last newline too."""
    ended = _SIGN.sub(lambda found: r"\Z" if found[0] == "$" else found[0], pattern)
    return re.compile(ended)


_SIGN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\$", re.DOTALL)
"""An escape, a set of characters, or the end of a text: only the last one is a `$` with a meaning."""


def matches(pattern: str, text: str) -> bool:
    """Return whether a text matches a pattern of a schema, anywhere in it, as JSON Schema has it."""
    return _compiled(pattern).search(text) is not None


def schema_names() -> tuple[str, ...]:
    """Return the names that `ortdeploy schema` takes."""
    folder = schema_folder()
    files = (path.relative_to(folder).as_posix() for path in folder.rglob(f"*{SUFFIX}"))
    return tuple(sorted(name.removesuffix(SUFFIX) for name in files))


def schema_text(name: str) -> str:
    """Return one schema as it stands in its file."""
    return (schema_folder() / f"{name}{SUFFIX}").read_text(encoding="utf-8")


@cache
def load_schema(name: str) -> dict[str, Any]:
    """Return one schema, read once in a process; nobody changes it."""
    schema: dict[str, Any] = json.loads(schema_text(name))
    return schema


def bundled_schema(name: str) -> str:
    """Return one schema with those that it refers to inside it, so that a single file serves an editor."""
    schema = json.loads(schema_text(name))
    text = json.dumps(schema, indent=2, ensure_ascii=False)
    for other in sorted(set(re.findall(rf'"\$ref": "([^"#]+){re.escape(SUFFIX)}"', text))):
        inner = json.loads(schema_text(other))
        for key in ("$id", "$schema"):  # those belong to a file of its own
            inner.pop(key)
        name = other.replace("/", "-")
        own = json.dumps(inner).replace('"#/$defs/', f'"#/$defs/{name}/$defs/')
        schema["$defs"][name] = json.loads(own)
    text = json.dumps(schema, indent=2, ensure_ascii=False)
    pattern = rf'"\$ref": "([^"#/]+)/([^"#]+){re.escape(SUFFIX)}"'
    return re.sub(pattern, r'"$ref": "#/$defs/\1-\2"', text) + "\n"
