"""The chat template of a model's folder, which is a program that came with the model: it is bounded before it runs.

ONNX Runtime GenAI renders templates in native code that nothing can interrupt. So a template may loop over what it is
given, and over nothing that it makes itself.
"""

import json
import re
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
}
_DEEPEST = 3


class TemplateError(ValueError):
    """Why there is no usable template, in words."""


def read_chat_template(folder: Path) -> str:
    """Return the chat template of a folder. Raises TemplateError, OSError."""
    text = read_text(folder / _FILE) if (folder / _FILE).is_file() else _of_config(folder / _CONFIG)
    if len(text) > _MOST:
        raise TemplateError(f"its chat template has {len(text)} characters, and {_MOST} are allowed")
    code = " ".join(re.findall(r"{[{%](.*?)[}%]}", re.sub(r"{#.*?#}", "", text, flags=re.DOTALL), re.DOTALL))
    bare = re.sub(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"", "''", code)
    for pattern, why in _UNBOUNDED.items():
        if re.search(pattern, bare):
            raise TemplateError(f"its chat template may run for ever: {why}")
    depth = deepest = 0
    for word in re.findall(r"{%-?\s*(for|endfor)\b", text):
        depth += 1 if word == "for" else -1
        deepest = max(deepest, depth)
    if deepest > _DEEPEST:
        raise TemplateError(f"its chat template has {deepest} loops inside of each other, and {_DEEPEST} are allowed")
    return text


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
