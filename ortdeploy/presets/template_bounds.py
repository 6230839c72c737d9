"""What bounds a chat template: loops that go through text, and values that are made of each other.

A loop inside of a loop over text, and a value that takes itself in twice, need no large prompt to run for hours or to
fill the memory. Loops over messages and tools are short, because nobody hands tools to a template here.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

STRING = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"", re.DOTALL)
_SET = re.compile(r"set\s+([\w.]+)\s*=(.*)", re.DOTALL)
_FOR = re.compile(r"for\s+([\w\s,]+?)\s+in\s+(.*)", re.DOTALL)
_SLICE = re.compile(r"messages(?:\[[\w+-]*:[\w+-]*\])?")
_PATH = re.compile(r"([A-Za-z_]\w*)(?:\.\w+|\[''\])*(?:\s*\|\s*items|\.items\(\))?")
_CONSTANT = re.compile(r"none|true|false|''|\[\]|\{\}|-?\d+", re.IGNORECASE)
_TOOLS = re.compile(r".*(?:\.|\[['\"])(?:tool_calls|arguments|properties)(?:['\"]\])?(?:\s*\|\s*items|\.items\(\))?")
_NAMES = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?:\.\w+)?")
_GROWS = re.compile(r"[~+{]|(?<![\w\])'])\[")
_FACTORS = {"tojson": 6, "join": 1000}
"""How much longer a text may become: escapes, and what stands between the parts of another text."""
_DEEPEST, _MOST = 3, 10_000


class UnboundedError(ValueError):
    """Why a template may run for ever, in words."""


class _Value(NamedTuple):
    """What a name is assigned: the expression without its texts, as it is written, and the names that it takes in."""

    text: str
    written: str
    takes: tuple[str, ...]


def check_bounds(statements: Sequence[str]) -> None:
    """Raise UnboundedError for statements, without their brackets, that no length of a prompt bounds."""
    values: dict[str, list[_Value]] = {}
    scopes: list[tuple[dict[str, str], bool]] = []
    sets = [said for one in statements if (said := _SET.fullmatch(one)) is not None]
    roots = {said[1].split(".")[0] for said in sets if "." in said[1] or said[2].strip().startswith("namespace")}
    for place, one in enumerate(statements):
        if (said := _FOR.fullmatch(one)) is not None:
            over = _value(re.split(r"\s+if\s+", said[2])[0], scopes, roots)
            names = {name: f"{name}@{place}" for name in re.findall(r"\w+", said[1])}
            scopes.append((names, not (_is_messages(over, values) or _is_short(over, values))))
            values |= {unique: [over] for unique in names.values()}
            _check_depth([is_text for _, is_text in scopes])
        elif one == "endfor" and scopes:
            scopes.pop()
        elif (said := _SET.fullmatch(one)) is not None:
            if said[1] in roots and not said[2].strip().startswith("namespace"):
                raise UnboundedError(f"it changes the namespace {said[1]}")
            values.setdefault(_scoped(said[1], scopes), []).append(_value(said[2], scopes, roots))
    sizes: dict[str, int | None] = {}
    for name in values:
        if _size(name, values, sizes) > _MOST:
            raise UnboundedError(f"{name.split('@')[0]} is made of too many others")


def _check_depth(loops: Sequence[bool]) -> None:
    if len(loops) > _DEEPEST:
        raise UnboundedError(f"it has {len(loops)} loops inside of each other, and {_DEEPEST} may be")
    if sum(loops) > 1:
        raise UnboundedError("it loops over text inside of a loop over text")


def _scoped(name: str, scopes: Sequence[tuple[dict[str, str], bool]]) -> str:
    return next((names[name] for names, _ in reversed(scopes) if name in names), name)


def _value(written: str, scopes: Sequence[tuple[dict[str, str], bool]], roots: set[str]) -> _Value:
    """Return a value with the names that it takes in. Raises UnboundedError."""
    text = STRING.sub("''", written).strip()
    found = _NAMES.findall(re.sub(r"\b\w+\s*=(?!=)", "", text))
    for path in found:
        if path in roots:
            raise UnboundedError(f"it hands on the namespace {path}")
    split = (path if path.split(".")[0] in roots else path.split(".")[0] for path in found)
    return _Value(text, written.strip(), tuple(_scoped(path, scopes) for path in split))


def _is_messages(value: _Value, values: dict[str, list[_Value]]) -> bool:
    """Return whether a value is the messages, or some of them in a row."""
    known = values.get(value.text, ())
    return all(_SLICE.fullmatch(one.text) for one in known or (value,)) and (bool(known) or "messages" not in values)


def _is_short(value: _Value, values: dict[str, list[_Value]], seen: set[str] | None = None) -> bool:
    """Return whether a value belongs to tools, which nobody hands to a template here, and so is no text."""
    if _CONSTANT.fullmatch(value.text) or _TOOLS.fullmatch(value.written):
        return True
    if not _PATH.fullmatch(value.text) or not value.takes:
        return False
    root, seen = value.takes[0], set() if seen is None else seen
    if root not in values:
        return root in {"tools", "documents"}
    if root in seen:
        return True  # it is looked at already
    seen.add(root)
    return all(_is_short(one, values, seen) for one in values[root])


def _size(name: str, values: dict[str, list[_Value]], sizes: dict[str, int | None]) -> int:
    """Return how many texts a name may hold, if each text of a prompt is one. Raises UnboundedError."""
    if name not in values:
        return 1
    if (known := sizes.get(name, 0)) is None:
        raise UnboundedError(f"{name.split('@', maxsplit=1)[0]} is made of what is made of it")
    if known:
        return known
    sizes[name], most = None, 1
    for one in values[name]:
        factor = max([times for filtered, times in _FACTORS.items() if re.search(rf"\b{filtered}\b", one.text)] or [1])
        if name in one.takes and ((one.takes.count(name) > 1 and _GROWS.search(one.text)) or factor > 1):
            raise UnboundedError(f"{name.split('@', maxsplit=1)[0]} = {one.written} doubles it")
        parts = [_size(other, values, sizes) for other in one.takes if other != name]
        most = max(most, factor * ((sum if _GROWS.search(one.text) else max)(parts) if parts else 1))
    sizes[name] = most
    return most
