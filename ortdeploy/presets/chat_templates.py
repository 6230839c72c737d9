"""The chat template of a model's folder, which is a program that came with the model: it is bounded before it runs.

ONNX Runtime GenAI renders templates in native code that nothing can interrupt. So a template may loop over what it is
given, and over nothing that it makes itself.
"""

import json
import re
from pathlib import Path

from ortdeploy.files.opening import read_text
from ortdeploy.presets.template_bounds import STRING, UnboundedError, check_bounds

_MOST = 64 * 1024
_FILE, _CONFIG = "chat_template.jinja", "tokenizer_config.json"
_UNBOUNDED = {
    r"(?<=%)\s*(?:macro|call)\b": "it defines macros, which may call themselves",
    r"\brange\s*\((?!\s*\w+\s*\|\s*length\s*\))": "it counts with range(…)",
    r"\*": "it multiplies",
    r"\brecursive\b": "it loops recursively",
    r"\b(?:include|import|extends)\b": "it reads other files",
    r"\.\s*(?:append|insert|extend|update)\b": "it puts values into lists, which may hold themselves then",
    r"(?<!\w)\d{4}": "it has a number of more than three digits, such as a width",
}
_INSIDE = rf"[-+]?((?:{STRING.pattern}|(?!{{[{{%#])[^'\"])*?)[-+]?"
_TOKEN = re.compile(rf"{{#(?:(?!{{#).)*?#}}|{{{{{_INSIDE}}}}}|{{%{_INSIDE}%}}", re.DOTALL)
"""A comment, a value, or a statement; strings in it may hold what looks like a tag."""


_NO_TOOLS = "{% set tools = none %}{% set documents = none %}"
"""What transformers hands to templates where nobody gives tools or documents."""


class TemplateError(ValueError):
    """Why there is no usable template, in words."""


def read_chat_template(folder: Path) -> str:
    """Return the chat template of a folder, as it renders in transformers. Raises TemplateError, OSError."""
    text = read_text(folder / _FILE) if (folder / _FILE).is_file() else _of_config(folder / _CONFIG)
    if len(text) > _MOST:
        raise TemplateError(f"its chat template has {len(text)} characters, and {_MOST} are allowed")
    if re.search(r"{[{%#]", _TOKEN.sub("", text)):
        raise TemplateError("its chat template has a tag that does not end")
    tags = [(one[1] or "", one[2] or "") for one in _TOKEN.finditer(text)]
    bare = STRING.sub("''", " ".join(f"{value}%{statement}" if statement else value for value, statement in tags))
    for pattern, why in _UNBOUNDED.items():
        if re.search(pattern, bare):
            raise TemplateError(f"its chat template may run for ever: {why}")
    try:
        check_bounds([statement.strip() for _, statement in tags if statement])
    except UnboundedError as error:
        raise TemplateError(f"its chat template may run for ever: {error}") from error
    except RecursionError as error:
        raise TemplateError("its chat template has too many values that are made of each other") from error
    return _NO_TOOLS + without_lines_of_tags(text)


def without_lines_of_tags(text: str) -> str:
    """Return a template that renders without options as it does with `trim_blocks` and `lstrip_blocks`.

    Templates are written for transformers, which sets both: a statement or a comment takes the white space before it
    with it if it begins a line, and a line's end behind it. GenAI sets none, and writes these into the prompt.
    """
    text = re.sub(r"\r\n?", "\n", text)
    made, end, is_begun = "", 0, False
    for tag in _TOKEN.finditer(text):
        before, of_value = text[end : tag.start()], tag[0][1] == "{"
        *_, line = before.rpartition("\n")
        if not of_value and tag[0][2] not in "+-" and not line.strip() and (line != before or not is_begun):
            before = before.removesuffix(line)
        opening, closing = (tag[0][place] == "+" for place in (2, -3))
        made += before + tag[0][:2] + tag[0][2 + opening : -2 - closing] + tag[0][-2:]
        end = tag.end()
        ends_line = not of_value and tag[0][-3] not in "+-" and text[end : end + 1] == "\n"
        end, is_begun = end + ends_line, not ends_line
    return made + text[end:]


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
