"""The chat template of a model's folder: what it is, and how messages become a prompt by it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ortdeploy.files.opening import read_text
from ortdeploy.shell import pip_install

_MOST = 64 * 1024
_FILE, _CONFIG = "chat_template.jinja", "tokenizer_config.json"
_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""What a template may write of a tokenizer's config, as in transformers."""
_TRIED = ({"role": "user", "content": "text"},)


class TemplateError(ValueError):
    """Why there is no usable template, or no prompt by it, in words."""


class ChatTemplate:
    """A template, which is used by one thread at a time."""

    def __init__(self, text: str, tokens: Mapping[str, str]) -> None:
        """Take the template and what it may write of the tokenizer. Raises TemplateError."""
        try:
            from jinja2.exceptions import SecurityError  # noqa: PLC0415  an extra

            from ortdeploy.presets.bounded_templates import BoundedEnvironment  # noqa: PLC0415  as above
        except ImportError as error:
            raise TemplateError(f"Jinja2 renders chat templates: {pip_install('ortdeploy[generate]')}") from error
        self._environment, self._tokens = BoundedEnvironment(), tokens
        try:
            self._template = self._environment.from_string(text)
        except Exception as error:  # Jinja's, and those of Python's compiler
            raise TemplateError(f"its chat template cannot be read: {error}") from error
        try:
            self._render(_TRIED)
        except (SecurityError, RecursionError) as error:
            raise TemplateError(f"its chat template may not run: {error}") from error
        except Exception:  # noqa: BLE001, S110  a template may refuse some messages
            pass

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return what a model reads for messages. Raises TemplateError."""
        try:
            return self._render(messages)
        except Exception as error:  # a program of a stranger may raise any
            raise TemplateError(f"the chat template does not take the messages: {error}") from error

    def end(self, *, early: bool) -> None:
        """Ask the rendering that goes on, and all later ones, to end; or let later ones go on."""
        self._environment.is_late = early

    def _render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        self._environment.fill(messages)
        return self._template.render(
            messages=messages, tools=None, documents=None, add_generation_prompt=True, **self._tokens
        )


def read_chat_template(folder: Path) -> ChatTemplate:
    """Return the chat template of a folder. Raises TemplateError, OSError."""
    config = _read_config(folder / _CONFIG)
    text = read_text(folder / _FILE) if (folder / _FILE).is_file() else _of_config(config)
    if not text.strip():
        raise TemplateError("its chat template is empty")
    if len(text) > _MOST:
        raise TemplateError(f"its chat template has {len(text)} characters, and {_MOST} are allowed")
    said = {name: config.get(name) for name in _TOKENS}
    tokens = {name: one.get("content") if isinstance(one, dict) else one for name, one in said.items()}
    return ChatTemplate(text, {name: one for name, one in tokens.items() if isinstance(one, str)})


def _read_config(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_text(path))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise TemplateError(f"{path.name} is no JSON object: {error}") from error
    if not isinstance(found, dict):
        raise TemplateError(f"{path.name} is no JSON object")
    return found


def _of_config(config: Mapping[str, Any]) -> str:
    found = config.get("chat_template")
    if isinstance(found, list):
        named = [one for one in found if isinstance(one, dict) and one.get("name") == "default"]
        found = next((one.get("template") for one in named), None)
    if not isinstance(found, str) or not found:
        raise TemplateError(f"it has no chat template, neither in {_CONFIG} nor as {_FILE}")
    return found
