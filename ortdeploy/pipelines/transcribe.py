"""Writes down what is said in each recording with a Whisper of ONNX Runtime GenAI: `generate` with an encoder.

A recording is heard in windows of 30 seconds, one after the other. Its bands of mel are made here, as Whisper wants
them, so that no native code of the library reads a stranger's file.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct, convert
from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.pipelines.component import Component
from ortdeploy.pipelines.generate import GenerateSession, how_of_row
from ortdeploy.plan.pipeline import PlannedPipeline
from ortdeploy.presets.speech import HOP, RATE, WINDOW, SpeechTokens
from ortdeploy.runtime.generation import Writing
from ortdeploy.tensors.columns import Array, Column
from ortdeploy.transforms.log_mel import WhisperBands

_ENDS = ("context", "length", "end")
"""Why texts end, that which matters most first."""


class _Transcript(Struct, frozen=True, kw_only=True):
    """What was heard in a recording, with the begins and ends of its segments in seconds."""

    text: str
    tokens: int
    finish_reason: str
    input_tokens: int
    language: str
    segments: list[str]
    begin: list[float]
    end: list[float]


class TranscribeSession(GenerateSession):
    """Writes down one recording after the other; it is used by one thread at a time."""

    def __init__(self, pipeline: PlannedPipeline, components: Mapping[str, Component]) -> None:
        """Open both models together. Raises OrtdeployError."""
        super().__init__(pipeline, components)
        speech = pipeline.preset.ports["speech"] if pipeline.preset is not None else {}
        self._tokens = convert(speech["tokens"], SpeechTokens)
        self._bands = int(speech["bands"])

    def run(self, outputs: Sequence[str], feeds: Mapping[str, Array], adapters: Sequence[str]) -> Sequence[Any]:  # noqa: ARG002  a preset's own
        """Return the named results, [rows] or [rows, segments] each. Raises OrtdeployError."""
        found = []
        for row, samples in enumerate(feeds["audio"]):
            language = (str(feeds["language"][row]) if "language" in feeds else "") or self._language
            how = how_of_row(self._how, feeds, row)
            found.append(self._transcript(np.asarray(samples, np.float32), how, language))
            self._counts.update(
                {"tokens": found[-1].tokens, "input_tokens": found[-1].input_tokens, found[-1].finish_reason: 1}
            )
        return [_column(name, [getattr(one, name) for one in found]) for name in outputs]

    def _transcript(self, samples: Array, how: Writing, language: str | None) -> _Transcript:
        """Return what is said in the samples [samples] of a recording. Raises OrtdeployError."""
        if language is not None and language not in (self._tokens.languages or ("en",)):
            raise OrtdeployError(f'the model knows no language "{language}"')
        if how.num_beams > 1 and self._timestamps:
            raise OrtdeployError(f"{how.num_beams} beams write no timestamps; set num_beams to 1")
        parts, texts, ends, count, read, offset = [], [], {"end"}, 0, 0, 0
        bands = self._heard(samples)
        whole = min(max(1, -(-len(samples) // HOP)), bands.frames)  # a begun frame of a long one is none
        while offset < whole:
            window = np.zeros((1, self._bands, WINDOW), np.float32)
            here = bands.of(offset, offset + WINDOW)
            window[0, :, : here.shape[1]] = here
            language, tokens, reason, given = self._window(window, how, language)
            ends, count, read = ends | {reason}, count + len(tokens), read + given
            segments, behind = [(0.0, 0.0, [one for one in tokens if one < self._tokens.end])], WINDOW
            if self._timestamps:
                segments, behind = self._tokens.segments(tokens, min(WINDOW, whole - offset))
            for begin, end, said in segments:
                texts.append(self._session.text_of(said))
                since = offset * HOP / RATE
                parts.append((round(since + begin, 2), round(since + end, 2), texts[-1].strip()))
            offset += behind
        return _Transcript(
            text="".join(texts).strip(),
            tokens=count,
            finish_reason=next(one for one in _ENDS if one in ends),
            input_tokens=read,
            language=language or "en",
            segments=[text for _, _, text in parts if text],
            begin=[begin for begin, _, text in parts if text],
            end=[end for _, end, text in parts if text],
        )

    def _heard(self, samples: Array) -> WhisperBands:
        """Return the bands of a recording [samples]; a short one is filled up with silence. Raises OrtdeployError."""
        silence = max(0, WINDOW * HOP - len(samples))
        try:
            return WhisperBands(np.pad(samples, (0, silence)) if silence else samples, self._bands)
        except ValueError as error:
            raise OrtdeployError(f"the recording cannot be heard: {error}") from error

    def _window(self, bands: Array, how: Writing, language: str | None) -> tuple[str | None, list[int], str, int]:
        """Return what is written of a window: language, tokens, why they ended, and how many were read before.

        Beams begin with the same tokens, so the language is heard before, in a text of one token.
        """
        if how.num_beams > 1 and self._tokens.languages and language is None:
            language, *_ = self._window(bands, replace(how, num_beams=1, max_new_tokens=1), None)
        hold = partial(self._tokens.hold, timestamps=self._timestamps)
        prompt = partial(self._tokens.prompt, translate=self._translate, timestamps=self._timestamps)
        if not self._tokens.languages or language is not None:
            given = [self._tokens.start, *prompt(language if self._tokens.languages else None)]
            return language, *self._session.hear(bands, given, None, hold, how), len(given)
        heard: list[str] = []

        def then(scores: Array) -> list[int]:
            heard.append(self._tokens.heard(scores))
            return prompt(heard[0])

        tokens, reason = self._session.hear(bands, [self._tokens.start], then, hold, how)
        return heard[0], tokens, reason, 1 + len(prompt(heard[0]))


def _column(name: str, values: list[Any]) -> Column:
    """Return a result of rows, [rows] or for each row [segments]."""
    if name in {"begin", "end"}:
        return [np.array(one, np.float64) for one in values]
    if name == "segments":
        return [np.array(one, object) for one in values]
    return np.array(values, np.int64 if name.endswith("tokens") else object)
