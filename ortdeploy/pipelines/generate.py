"""Writes a text for each row with a model of ONNX Runtime GenAI: the preset `generate`.

Each row is written alone, so that nothing beside it can change a token. Where the manifest says
`row_independence: false` of the decoder, rows whose prompts have equally many tokens, and which are written in the
same way, are written together.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.pipelines.component import Component, ComposedSession
from ortdeploy.plan.pipeline import PlannedPipeline
from ortdeploy.presets.chat_templates import TemplateError, read_chat_template
from ortdeploy.runtime.generation import GenaiSession, Writing, Written
from ortdeploy.tensors.columns import Array

_LIMITS = {
    "max_new_tokens": (1, 2**31 - 1),
    "temperature": (0, 100),
    "top_p": (1e-6, 1),
    "top_k": (1, 2**31 - 1),
    "repetition_penalty": (1e-6, 100),
    "num_beams": (1, 64),
    "seed": (0, 2**31 - 1),
}
"""The range of each column that says how a row is written, as in the manifest."""
_DRAWN = ("temperature", "top_p", "top_k", "seed")


class GenerateSession(ComposedSession):
    """Writes one text of each row; it is used by one thread at a time."""

    def __init__(self, pipeline: PlannedPipeline, components: Mapping[str, Component]) -> None:
        """Read the chat template. Raises OrtdeployError."""
        super().__init__(components)
        if pipeline.preset is None:
            raise TypeError("the pipeline has no preset")
        preset = pipeline.preset
        parts = {part: cast("GenaiSession", components[name].opened.session) for part, name in preset.sessions.items()}
        self._session = parts.get("decoder") or next(iter(parts.values()))  # any part of a decoder opens all
        if len(parts) > 1:
            self._session.open_with(parts)
        self._counts: Counter[str] = Counter()
        self._always = tuple(preset.adapters.get("decoder", ()))
        said = dict(preset.arguments)
        self._system, self._chat, self._template = said.pop("system", None), preset.task, ""
        self._language, self._translate = said.pop("language", None), said.pop("translate", False)
        self._timestamps = said.pop("timestamps", False)
        schema = said.pop("json_schema", None)
        self._how = Writing(
            context=said.pop("context_length"), max_new_tokens=said.pop("max_new_tokens", None),
            stop=tuple(said.pop("stop", ())), json_schema=None if schema is None else json.dumps(schema), **said,
        )  # fmt: skip
        if schema is not None:
            self._session.check(self._how)
        if self._chat in {"prompt", "messages"}:
            try:
                self._template = read_chat_template(Path(preset.folder))
            except (TemplateError, OSError) as error:
                raise OrtdeployError(f"{pipeline.name}: {error}") from error

    def run(self, outputs: Sequence[str], feeds: Mapping[str, Array], adapters: Sequence[str]) -> Sequence[Any]:
        """Return the named results, [rows] each. Raises OrtdeployError."""
        texts = feeds["messages" if self._chat == "messages" else "prompt"]
        prompts = [self._prompt(str(text)) for text in texts]
        hows = [self._how_of_row(feeds, row) for row in range(len(texts))]
        written: list[Written | None] = [None] * len(prompts)
        for places in self._groups(prompts, hows):
            found = self._session.write([prompts[row] for row in places], hows[places[0]], (*self._always, *adapters))
            for row, one in zip(places, found, strict=True):
                written[row] = one
                self._counts.update({"tokens": one.tokens, "input_tokens": one.input_tokens, one.finish_reason: 1})
        return [np.array([getattr(one, name) for one in written], dtype=_dtype(name)) for name in outputs]

    @property
    def written(self) -> Mapping[str, int]:
        """Tokens that were written and read, and texts by why they ended."""
        return dict(self._counts)

    @property
    def progressed(self) -> float:
        """Time of the last token, by perf_counter; 0 before the first."""
        return self._session.progressed

    def _groups(self, prompts: Sequence[str], hows: Sequence[Writing]) -> Sequence[Sequence[int]]:
        """Return the rows that are written together, by their places."""
        if len(prompts) == 1:
            return [[0]]
        groups: dict[tuple[int, Writing], list[int]] = {}
        for row, (prompt, how) in enumerate(zip(prompts, hows, strict=True)):
            groups.setdefault((len(self._session.tokens_of(prompt)), how), []).append(row)
        return list(groups.values())

    def _prompt(self, text: str) -> str:
        """Return what the model reads for a row's text. Raises OrtdeployError."""
        if self._chat == "none":
            return text
        first = [] if self._system is None else [{"role": "system", "content": self._system}]
        messages = _messages(text) if self._chat == "messages" else [{"role": "user", "content": text}]
        return self._session.render(self._template, [*first, *messages])

    def _how_of_row(self, feeds: Mapping[str, Array], row: int) -> Writing:
        """Return how a row is written, by its columns. Raises OrtdeployError."""
        said = {name: feeds[name][row] for name in _LIMITS if name in feeds}
        if not said:
            return self._how
        for name, value in said.items():
            low, high = _LIMITS[name]
            if not low <= value <= high:
                raise OrtdeployError(f"{name} is {value}, and must lie in {low:g} to {high:g}")
        values = {name: value.item() for name, value in said.items()}
        if not set(_DRAWN).isdisjoint(values):
            values["do_sample"] = values.get("temperature", self._how.temperature) != 0
        return replace(self._how, **values)


def _messages(text: str) -> list[dict[str, str]]:
    """Return the messages of a row. Raises OrtdeployError."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OrtdeployError(f"messages are no JSON text: {error}") from error
    if not isinstance(found, list) or not found:
        raise OrtdeployError("messages are no list of messages")
    for one in found:
        if not isinstance(one, dict) or not all(isinstance(one.get(key), str) for key in ("role", "content")):
            raise OrtdeployError("a message has no text role and content")
    return [{"role": one["role"], "content": one["content"]} for one in found]


def _dtype(name: str) -> Any:
    return np.int64 if name.endswith("tokens") else object
