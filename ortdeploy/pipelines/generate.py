"""Writes a text for each row with a model of ONNX Runtime GenAI: the preset `generate`.

Each row is written alone, so that nothing beside it can change a token. Where the manifest says
`row_independence: false` of the decoder, rows that are written in the same way are written together if their prompts
are about as long.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.json_text import object_once
from ortdeploy.pipelines.component import Component, ComposedSession
from ortdeploy.plan.pipeline import PlannedPipeline
from ortdeploy.presets.chat_templates import ChatTemplate, TemplateError, read_chat_template
from ortdeploy.presets.row_columns import is_left_out
from ortdeploy.runtime.generation import GenaiSession, Writing, Written, writing_of
from ortdeploy.tensors.answers import AnswerError, columns_of, read_answer
from ortdeploy.tensors.columns import Array, Column

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
_STOP = (16, 1000)
"""How many texts a column `stop` has at most, and of how many characters, as in the manifest."""
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
        said = preset.arguments
        self._system, self._chat = said.get("system"), preset.task
        self._template: ChatTemplate | None = None
        self._language, self._translate = said.get("language"), said.get("translate", False)
        self._timestamps = said.get("timestamps", False)
        self._schema = said.get("json_schema")
        self._columns = columns_of(self._schema)
        self._how = writing_of(said)
        if self._schema is not None:
            self._check_schema(pipeline.name)
        if self._chat in {"prompt", "messages"}:
            try:
                self._template = read_chat_template(Path(preset.folder))
            except (TemplateError, OSError) as error:
                raise OrtdeployError(f"{pipeline.name}: {error}") from error

    def run(self, outputs: Sequence[str], feeds: Mapping[str, Array], adapters: Sequence[str]) -> Sequence[Any]:
        """Return the named results, [rows] each. Raises OrtdeployError."""
        texts = [str(text) for text in feeds["messages" if self._chat == "messages" else "prompt"]]
        always = replace(self._how, log_probabilities="log_probabilities" in outputs)
        hows = [how_of_row(always, feeds, row) for row in range(len(texts))]
        written = self._written(texts, hows, feeds, adapters)
        for one in written:
            self._counts.update({"tokens": one.tokens, "input_tokens": one.input_tokens, one.finish_reason: 1})
        answers = [self._answer(one) for one in written] if not self._columns.keys().isdisjoint(outputs) else []
        return [
            np.array([one[name] for one in answers], dtype=_dtype(self._columns[name]))
            if name in self._columns
            else _column([getattr(one, name) for one in written], name)
            for name in outputs
        ]

    def _written(
        self,
        texts: Sequence[str],
        hows: Sequence[Writing],
        feeds: Mapping[str, Array],  # noqa: ARG002  what a model takes beside texts
        adapters: Sequence[str],
    ) -> list[Written]:
        """Return what is written of the texts of rows. Raises OrtdeployError."""
        framed = self._chat == "none"  # a chat template writes itself how a text begins
        prompts = [self._session.tokens_of(self._prompt(text), framed=framed) for text in texts]
        found: dict[int, Written] = {}
        for places in groups_of(prompts, hows, self._session.filler):
            some = self._session.write([prompts[row] for row in places], hows[places[0]], (*self._always, *adapters))
            found.update(zip(places, some, strict=True))
        return [found[row] for row in range(len(texts))]

    def end_runs(self, *, early: bool) -> None:
        """Ask what is rendered or written, and all that comes later, to end; or let it go on."""
        super().end_runs(early=early)
        if self._template is not None:
            self._template.end(early=early)

    @property
    def written(self) -> Mapping[str, int]:
        """Tokens that were written and read, and texts by why they ended."""
        return dict(self._counts)

    @property
    def progressed(self) -> float:
        """Time of the last token, by perf_counter; 0 before the first."""
        return self._session.progressed

    def _check_schema(self, name: str) -> None:
        """Raise OrtdeployError for a schema that the library does not understand."""
        try:
            self._session.check(self._how)
        except OrtdeployError as error:
            raise OrtdeployError(f"{name}: json_schema cannot be used: {error}") from error

    def _prompt(self, text: str) -> str:
        """Return what the model reads for a row's text. Raises OrtdeployError."""
        if self._template is None:
            return text
        first = [] if self._system is None else [{"role": "system", "content": self._system}]
        messages = _messages(text) if self._chat == "messages" else [{"role": "user", "content": text}]
        try:
            return self._template.render([*first, *messages])
        except TemplateError as error:
            raise OrtdeployError(str(error)) from error

    def _answer(self, written: Written) -> dict[str, Any]:
        """Return the values of an answer by column. Raises OrtdeployError."""
        try:
            return read_answer(written.text, self._schema or {})
        except AnswerError as error:
            ended = f"it ended after {written.tokens} tokens ({written.finish_reason})"
            raise OrtdeployError(f"{error}; {ended}: {json.dumps(written.text, ensure_ascii=False)[:200]}") from error


def groups_of(prompts: Sequence[Array], hows: Sequence[Writing], filler: int) -> list[list[int]]:
    """Return the rows that are written together, by their places; prompts are int32 [tokens].

    A prompt that ends with what fills others up would seem to be shorter beside them, so it is written alone.
    """
    groups: list[list[int]] = []
    latest: dict[Writing, list[int]] = {}
    for row in sorted(range(len(prompts)), key=lambda row: len(prompts[row])):
        prompt, how = prompts[row], hows[row]
        if len(prompt) and prompt[-1] == filler:
            groups.append([row])
            continue
        group = latest.get(how)
        if group is None or not how.takes_beside(len(prompts[group[0]]), len(prompt)):
            group = latest[how] = []
            groups.append(group)
        group.append(row)
    return groups


def how_of_row(always: Writing, feeds: Mapping[str, Array], row: int) -> Writing:
    """Return how a row is written, by those of its columns that are not empty. Raises OrtdeployError."""
    told = {name: feeds[name][row] for name in (*_LIMITS, "stop") if name in feeds}
    said = {name: value for name, value in told.items() if not is_left_out(value)}
    if not said:
        return always
    values = {name: _texts(value) if name == "stop" else _number(name, value) for name, value in said.items()}
    drawn = [name for name in _DRAWN if name in values]
    if drawn:
        values["do_sample"] = values.get("temperature", always.temperature) != 0
    how = replace(always, **values)
    if drawn and how.do_sample and how.num_beams > 1:
        raise OrtdeployError(f"{how.num_beams} beams draw no tokens, so {' and '.join(drawn)} would have no effect")
    return how


def _number(name: str, value: Any) -> Any:
    low, high = _LIMITS[name]
    if not low <= value <= high:
        raise OrtdeployError(f"{name} is {value}, and must lie in {low} to {high}")
    return value.item()


def _texts(value: Any) -> tuple[str, ...]:
    """Return the texts at which a row's text ends, from a list as JSON. Raises OrtdeployError."""
    try:
        found = json.loads(str(value))
    except (ValueError, RecursionError) as error:
        raise OrtdeployError(f"stop is no JSON text: {error}") from error
    most, longest = _STOP
    if not isinstance(found, list) or len(found) > most:
        raise OrtdeployError(f"stop is no list of at most {most} texts")
    if not all(isinstance(one, str) and 0 < len(one) <= longest for one in found):
        raise OrtdeployError(f"stop has what is no text of 1 to {longest} characters")
    return tuple(found)


def _messages(text: str) -> list[dict[str, Any]]:
    """Return the messages of a row. Raises OrtdeployError."""
    try:
        found = json.loads(text, object_pairs_hook=object_once)
    except (ValueError, RecursionError) as error:
        raise OrtdeployError(f"messages are no JSON text: {error}") from error
    if not isinstance(found, list) or not found:
        raise OrtdeployError("messages are no list of messages")
    for one in found:
        if not isinstance(one, dict) or not isinstance(one.get("role"), str):
            raise OrtdeployError("a message has no text role")
        if one.keys().isdisjoint(("content", "tool_calls")):
            raise OrtdeployError("a message has neither content nor tool_calls")
    return found


def _column(values: Sequence[Any], name: str) -> Column:
    """Return a result of all rows: [rows], or of rows that have a value for each token, a list."""
    if name == "log_probabilities":
        return list(values)
    return np.array(values, dtype=_dtype({"seconds": "float64"}.get(name, "int64" if name.endswith("tokens") else "")))


def _dtype(kind: str) -> Any:
    return kind if kind in {"int64", "float64", "bool"} else object
