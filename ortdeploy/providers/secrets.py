"""Decides which options are secrets: those with `x-secret` in a schema, and by name if there is no schema.

A declared option goes by its declaration alone: one whose name speaks of a key and that is none is shown.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from typing import Any
from urllib.parse import urlsplit

from ortdeploy.files.urls import MASK, is_url
from ortdeploy.providers.catalogue import find_provider
from ortdeploy.providers.options import options_schema
from ortdeploy.redaction import is_secret_name, masked, masked_setting, remember_secret, without_secrets
from ortdeploy.schemas import load_schema

_ON_END = "on_end"


def masked_options(provider: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a provider, by whichever of its names, as anybody may see them."""
    known = find_provider(provider)
    return _masked(options, lambda: options_schema(known)["properties"] if known else {})


def masked_settings(part: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return session options (`part` is session) or run options (run) as anybody may see them."""
    shown = _masked({key: value for key, value in options.items() if key != "config"}, partial(_declared, part))
    if "config" in options:
        shown["config"] = _masked(options["config"], partial(_declared, f"{part}Config"))
    return shown


def remember_secrets(document: Any) -> None:
    """Note every secret in a manifest's text, so that no message holds it; the document may have any shape."""
    for value in _secrets(document):
        remember_secret(value)


def masked_document(value: Any, name: str = "") -> Any:
    """Return a manifest's or a plan's text as anybody may see it: options by their schemas, all else without URLs'."""
    if isinstance(value, list):
        return [
            masked_setting(item) if name == "sets" and isinstance(item, str) else masked_document(item)
            for item in value
        ]
    if not isinstance(value, dict):
        return masked("", value)
    return {key: _masked_entry(key, inner, value) for key, inner in value.items()}


def _masked_entry(key: str, value: Any, beside: Mapping[str, Any]) -> Any:
    if key in _declared_anywhere():
        return MASK
    if key == _ON_END and isinstance(value, dict) and "url" in value:
        value = {**value, "url": _shown_server(str(value["url"]))}
    if key == "options" and isinstance(value, dict):
        provider = str(beside.get("provider") or beside.get("name") or "")
        return masked_document(masked_options(provider, value))
    return masked_document(value, key)


def shown_line(lines: Sequence[str], number: int) -> str:
    """Return a line of a manifest, counted from 0, as anybody may see it, whether or not the manifest can be parsed.

    What follows a key of a secret is masked, also on the lines below that belong to the key.
    """
    line = without_secrets(lines[number])
    depth = _depth(line)
    for above in reversed(lines[:number] if depth else []):
        if above.strip() and _depth(above) < depth:
            depth = _depth(above)
            key = _secret_key(above)
            if key is not None and above[key:].strip() in _OPENINGS:
                return " " * _depth(line) + MASK
        if not depth:
            break
    key = _secret_key(line)
    return line if key is None or not line[key:].strip() else f"{line[:key]} {MASK}"


_KEY = r"""(?<![\w.-])([\w.-]+)["']?[ \t]*:(?=[ \t\n]|\Z)"""
_OPENINGS = frozenset({"", "|", ">", "|-", ">-", "|+", ">+"})
"""What stands behind a key whose value begins on the next line."""


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _secret_key(line: str) -> int | None:
    """Return where the first key of a secret ends, behind its colon; None if there is none."""
    for key in re.finditer(_KEY, line):
        if is_secret_name(key[1]) or key[1] == "url" or _is_declared(key[1]):
            return key.end()
    return None


@lru_cache(1000)  # the lines of a manifest have few keys
def _is_declared(name: str) -> bool:
    """Return whether a name is that of a secret option, or that with a slip of the pen."""
    declared = _declared_anywhere()
    if name in declared:
        return True
    from difflib import get_close_matches  # noqa: PLC0415  only to show a line

    return bool(get_close_matches(name, declared, n=1, cutoff=0.8))


def _masked(options: Mapping[str, Any], declared: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    return {name: _masked_one(name, value, declared) for name, value in options.items()}


def _masked_one(name: str, value: Any, declared: Callable[[], Mapping[str, Any]]) -> Any:
    """Return a value as anybody may see it. All declared secrets are called so: else no schema needs to be read."""
    if value is None:
        return None
    facts = declared().get(name) if is_secret_name(name) else None
    if facts is None:
        return masked(name, value)
    return MASK if facts.get("x-secret") else masked("", value)


def _path_of(url: str) -> list[str]:
    """Return the path behind a server's name: whoever knows it may post there, as with the hooks of chat services."""
    path = urlsplit(url).path.strip("/") if is_url(url) else ""
    return [path] if path else []


def _shown_server(url: str) -> str:
    for path in _path_of(url):
        url = url.replace(path, MASK)
    return url


@cache
def _declared(part: str) -> Mapping[str, Any]:
    definition: Mapping[str, Any] = load_schema("deployment")["$defs"][part]["properties"]
    return definition


@cache
def _declared_anywhere() -> frozenset[str]:
    """Return the names of session and run options that are secrets."""
    return frozenset(
        name
        for part in ("session", "sessionConfig", "run", "runConfig")
        for name, facts in _declared(part).items()
        if facts.get("x-secret")
    )


def _secrets(value: Any) -> Iterator[str]:
    """Yield the texts that stand under the name of a secret, in options and their documents alone."""
    if isinstance(value, list):
        for item in value:
            yield from _secrets(item)
    if not isinstance(value, dict):
        return
    for name, inner in value.items():
        if name in _declared_anywhere():
            yield from _texts(inner)
        elif name == _ON_END and isinstance(inner, dict):
            yield from _path_of(str(inner.get("url", "")))
        elif name == "options" and isinstance(inner, dict):
            yield from _secrets_of_options(str(value.get("provider", "")), inner)
        else:
            yield from _secrets(inner)


def _secrets_of_options(provider: str, options: Mapping[str, Any]) -> Iterator[str]:
    known = find_provider(provider)
    declared = options_schema(known)["properties"] if known else {}
    for name, value in options.items():
        facts = declared.get(name)
        if facts.get("x-secret") if facts is not None else is_secret_name(str(name)):
            yield from _texts(value)
        elif isinstance(value, dict):
            yield from _secrets_of_options("", value)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)
    elif value is not None and not isinstance(value, bool):
        yield str(value)
