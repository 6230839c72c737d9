"""The chat template of a model's folder, which is a program that came with the model: it is bounded before it runs.

ONNX Runtime GenAI renders templates in native code that nothing can interrupt. So a template may loop over what it is
given, and over nothing that it makes itself.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from ortdeploy.files.opening import read_text

_MOST = 64 * 1024
_FILE, _CONFIG = "chat_template.jinja", "tokenizer_config.json"
_UNBOUNDED = {
    r"\bmacro\b|\bcall\b": "it defines macros, which may call themselves",
    r"\brange\s*\((?!\s*\w+\s*\|\s*length\s*\))": "it counts with range(…)",
    r"\*": "it multiplies",
    r"\brecursive\b": "it loops recursively",
    r"\b(?:include|import|extends)\b": "it reads other files",
    r"\.\s*(?:append|insert|extend|update)\b": "it puts values into lists, which may hold themselves then",
    r"\d{5}": "it has a number of more than four digits, such as a width",
}
_STRING = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"", re.DOTALL)
_INSIDE = rf"[-+]?((?:{_STRING.pattern}|[^'\"])*?)[-+]?"
_TOKEN = re.compile(rf"{{#.*?#}}|{{{{{_INSIDE}}}}}|{{%{_INSIDE}%}}", re.DOTALL)
"""A comment, a value, or a statement; strings in it may hold what looks like a tag."""
_DEEPEST = 3
_SLICE = re.compile(r"messages(?:\[[\w+-]*:[\w+-]*\])?")
_LISTS = re.compile(
    r"[\w.\['\"\]]*?\b(tools|tool_calls|documents|arguments|properties)(?:['\"]\])?(?:\s*\|\s*items|\.items\(\))?"
)
_SET, _FOR = re.compile(r"set\s+([\w.]+)\s*=(.*)", re.DOTALL), re.compile(r"for\s+([\w\s,]+?)\s+in\s+(.*)", re.DOTALL)
_GROWS = re.compile(r"[~+{]|(?<![\w\])'])\[|\b(?:tojson|join|indent)\b")
_MULTIPLIES = re.compile(r"\b(?:tojson|join|indent)\b")


class TemplateError(ValueError):
    """Why there is no usable template, in words."""


def read_chat_template(folder: Path) -> str:
    """Return the chat template of a folder. Raises TemplateError, OSError."""
    text = read_text(folder / _FILE) if (folder / _FILE).is_file() else _of_config(folder / _CONFIG)
    if len(text) > _MOST:
        raise TemplateError(f"its chat template has {len(text)} characters, and {_MOST} are allowed")
    if re.search(r"{[{%#]", _TOKEN.sub("", text)):
        raise TemplateError("its chat template has a tag that does not end")
    tags = [(one[1] or "", one[2] or "") for one in _TOKEN.finditer(text)]
    bare = _STRING.sub("''", " ".join(value + statement for value, statement in tags))
    for pattern, why in _UNBOUNDED.items():
        if re.search(pattern, bare):
            raise TemplateError(f"its chat template may run for ever: {why}")
    statements = [statement.strip() for _, statement in tags if statement]
    _check_loops(statements)
    _check_growth(statements)
    return text


def _assigned(statements: Sequence[str]) -> dict[str, list[str]]:
    """Return the names that a template assigns, also as attributes and in loops, with the values of each."""
    found: dict[str, list[str]] = {}
    for one in statements:
        said = _SET.fullmatch(one) or _FOR.fullmatch(one) or re.fullmatch(r"set\s+(\w+)()", one)
        if said is not None:
            for name in re.findall(r"\w+", said[1]):
                found.setdefault(name, []).append(said[2].strip())
    return found


def _check_loops(statements: Sequence[str]) -> None:
    """Raise TemplateError for loops in loops that are too many, or that may go through text again and again."""
    assigned, loops = _assigned(statements), []
    targets = {name for one in statements if (found := _FOR.fullmatch(one)) for name in re.findall(r"\w+", found[1])}
    for one in statements:
        if (said := _FOR.fullmatch(one)) is not None:
            over = re.split(r"\s+if\s+", said[2])[0].strip()
            known = _LISTS.fullmatch(over)
            values = [found[2].strip() for other in statements if (found := _SET.fullmatch(other)) and found[1] == over]
            of_messages = over not in targets and all(map(_SLICE.fullmatch, values or [over]))
            loops.append(not (of_messages or (known is not None and known[1] not in assigned)))
        elif one == "endfor" and loops:
            loops.pop()
        if len(loops) > _DEEPEST:
            raise TemplateError(f"its chat template has {len(loops)} loops inside of each other, and {_DEEPEST} may be")
        if sum(loops) > 1:
            raise TemplateError("its chat template may run for ever: it loops over text inside of a loop over text")


def _check_growth(statements: Sequence[str]) -> None:
    """Raise TemplateError for a value that is made of assigned ones more than once: it would double again and again."""
    assigned = _assigned(statements)
    kept = {name for name, values in assigned.items() if not all(map(_SLICE.fullmatch, values))}
    lists = {name for one in statements if (said := _FOR.fullmatch(one)) for name in re.findall(r"\w+", said[1])}
    safe = {name for name in lists if not any(kept & {*re.findall(r"\w+", one)} for one in assigned[name])}
    for one in statements:
        said = _SET.fullmatch(one)
        value = _STRING.sub("''", said[2]) if said is not None else ""
        value = re.sub(r"\b\w+\s*=(?!=)", "", value)
        paths = [path for path in re.findall(r"(?<![\w.])[A-Za-z_]\w*", value) if path in kept - safe]
        if (len(paths) > 1 and _GROWS.search(value)) or (paths and _MULTIPLIES.search(value)):
            raise TemplateError(
                f"its chat template may write a text without end: {one} takes in what it has made before"
            )


def _of_config(path: Path) -> str:
    try:
        found = json.loads(read_text(path)).get("chat_template")
    except (ValueError, RecursionError, AttributeError) as error:
        raise TemplateError(f"{path.name} is no JSON object: {error}") from error
    except FileNotFoundError:
        found = None
    if isinstance(found, list):
        found = next(
            (one.get("template") for one in found if isinstance(one, dict) and one.get("name") == "default"), 0
        )
    if not isinstance(found, str) or not found:
        raise TemplateError(f"it has no chat template, neither in {_CONFIG} nor as {_FILE}")
    return found
