"""Opens a folder with ONNX Runtime GenAI, as the plan says, and writes texts with it, token by token.

GenAI opens the sessions itself, on the onnxruntime that is installed. Its config names providers and options; those of
the plan take their place. A text is written alone unless the plan lets rows run together.

GenAI's `Engine` is not used. Without PagedAttention, of which ONNX Runtime has no kernel for CPUs, its batches are as
fixed as those here and no faster (`benchmarks/generate.py`), and it knows neither adapters nor beams nor a row's seed.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from ortdeploy.diagnostics import OrtdeployError, OutOfMemoryError
from ortdeploy.files.opening import read_text
from ortdeploy.files.scratch import scratch_folder
from ortdeploy.plan.steps import OpenSession, PlannedSession
from ortdeploy.process.held_process import ended_if_endless
from ortdeploy.providers.catalogue import CPU
from ortdeploy.providers.genai import LEVELS, PROVIDERS
from ortdeploy.runtime.bounded_tokenizer import HARD, check_whole, encoded, time_for
from ortdeploy.runtime.library import first_line, preload, says_no_memory
from ortdeploy.tensors.columns import Array

_ERRORS_ONLY = 3
_SEEING = 60.0
"""Seconds of processor time that the library may take for a picture, beside its prompt, and for a recording."""
CONFIG = "genai_config.json"


class Writing(Struct, frozen=True, kw_only=True):
    """How one text is written; `context` is the most tokens that the model can see, with the prompt's.

    `json_schema` is the text of a schema that it must fit. `log_probabilities`: those of its tokens are wanted.
    """

    context: int
    max_new_tokens: int | None
    do_sample: bool
    temperature: float
    top_p: float
    top_k: int
    repetition_penalty: float
    num_beams: int
    seed: int
    stop: tuple[str, ...] = ()
    json_schema: str | None = None
    log_probabilities: bool = False

    def most(self, given: int) -> int:
        """Return how many tokens there are at most, with the `given` ones of the prompt."""
        return min(self.context, given + (self.max_new_tokens or self.context))

    def takes_beside(self, least: int, most: int) -> bool:
        """Return whether prompts of `least` to `most` tokens are written together.

        The shorter ones are filled up. What fills them would count as repeated, and shorten texts at the context's end.
        Texts that fit a schema are written alone: GenAI gives all of them up if one ends before the others.
        """
        if self.json_schema is not None:
            return False
        if least == most:
            return True
        fills = self.num_beams == 1 and self.repetition_penalty == 1 and self.max_new_tokens is not None
        return fills and most <= 2 * least and most + (self.max_new_tokens or 0) <= self.context


class Written(Struct, frozen=True, kw_only=True):
    """A text, how many tokens it and its prompt have, and why it ended: end, stop, length or context.

    `seconds` passed from when its prompt was read, with those beside it, until it ended. `log_probabilities`, float32
    [tokens], are by the model's own scores; empty if they are not wanted.
    """

    text: str
    tokens: int
    finish_reason: str
    input_tokens: int
    seconds: float
    log_probabilities: Array


def writing_of(arguments: Mapping[str, Any]) -> Writing:
    """Return how texts are written by the arguments of a preset."""
    said = {name: arguments[name] for name in Writing.__struct_fields__ if name in arguments}
    schema = said.get("json_schema")
    said |= {"stop": tuple(said.get("stop", ())), "json_schema": None if schema is None else json.dumps(schema)}
    return Writing(**{"max_new_tokens": None, **said}, context=arguments["context_length"])


@cache
def genai() -> Any:
    """Return the library, with its telemetry off. Raises OrtdeployError."""
    try:
        import onnxruntime_genai as library  # noqa: PLC0415  an extra: few plans write text
    except Exception as error:  # the binding's errors, and those of a library that cannot be loaded
        raise OrtdeployError(f"onnxruntime-genai cannot be used: {error}") from error
    library.disable_telemetry_events()
    return library


class GenaiSession:
    """A model that writes. One thread uses it at a time. `progressed` is when it wrote its last token."""

    def __init__(self, step: OpenSession, candidate: PlannedSession) -> None:
        """Open the folder in which the step's model lies, or wait for the other models. Raises OrtdeployError."""
        self._step, self._candidate = step, candidate
        self._adapters: Any = None
        self._processor: Any = None
        self._early = threading.Event()
        self.progressed = 0.0
        if not step.together:
            self.open_with({"decoder": self})
        self.placement: Mapping[str, int] = candidate.predicted or {}
        self.cpu_operators: Sequence[str] = ()
        self.cache: str | None = None

    def open_with(self, parts: "Mapping[str, GenaiSession]") -> None:
        """Open the folder, each part of it as it was planned. Raises OrtdeployError."""
        if any(provider.name != CPU for part in parts.values() for provider in part._candidate.providers):  # noqa: SLF001  of the same class
            preload()
        folders = dict.fromkeys(Path(one._step.path).parent.resolve() for one in (self, *parts.values()))  # noqa: SLF001  as above
        options = {part: _session_options(one._step, one._candidate) for part, one in parts.items()}  # noqa: SLF001  as above
        runs = {part: dict(one._step.run_options.get("config", {})) for part, one in parts.items()}  # noqa: SLF001  as above
        try:
            self._beside = scratch_folder("genai")  # GenAI reads in it as long as it writes
            beside = self._beside.__enter__().path
            write_config(tuple(folders), beside, options, runs)
            self._model, self._tokenizer, self._processor = _opened(beside, senses="vision" in parts)
        except Exception as error:  # every error of the binding derives from Exception
            raise OrtdeployError(f'Model "{self._step.model}" cannot be opened: {first_line(error)}') from error
        self._ends = {int(one) for one in self._tokenizer.eos_token_ids}
        self.filler = int(self._tokenizer.pad_token_id)

    def run(self, outputs: Sequence[str], feeds: Mapping[str, Array], adapters: Sequence[str]) -> Sequence[Any]:  # noqa: ARG002  as a session has it
        """Refuse: what writes is no graph that runs once."""
        raise TypeError("a model that writes is not run as a graph")

    def end_runs(self, *, early: bool) -> None:
        """Ask the text that is being written, and all later ones, to end; or let later ones be written."""
        if early:
            self._early.set()
        else:
            self._early.clear()

    def load_adapter_file(self, name: str, path: str) -> None:
        """Load an adapter. Raises OrtdeployError."""
        try:
            self._adapters = self._adapters or genai().Adapters(self._model)
            self._adapters.load(path, name)
        except Exception as error:
            raise OrtdeployError(f'Adapter "{name}" ({path}): {first_line(error)}') from error

    def write(self, prompts: Sequence[Array], how: Writing, adapters: Sequence[str]) -> list[Written]:
        """Write a text for each prompt, int32 [tokens], together; shorter ones are filled up with `filler`.

        Raises OrtdeployError for a prompt that the context does not hold.
        """
        try:
            return self._write(prompts, how, adapters)
        except (MemoryError, OrtdeployError):
            raise
        except Exception as error:
            raise _translated(error) from error

    def describe(self, prompt: str, pictures: Sequence[bytes], sound: bytes | None, how: Writing) -> Written:
        """Write a text for a prompt that says where its pictures and its recording are, PNGs and a WAV.

        These must be sound: over a JPEG that is broken, or an empty recording, the library ends the process. Raises
        OrtdeployError as `write` does.
        """
        check_whole(prompt)
        library = genai()
        try:
            sensed = {"images": library.Images.open_bytes(*pictures)} if pictures else {}
            sensed |= {} if sound is None else {"audios": library.Audios.open_bytes(sound)}
            with ended_if_endless(time_for(prompt) + _SEEING * (len(pictures) + (sound is not None))):
                tensors = self._processor(prompt, **sensed)
            if not pictures:  # of this shape, GenAI gives the model none; else some get a rank that they do not take
                tensors["pixel_values"] = np.zeros((1, 1, 1), np.float32)
            given = int(tensors["input_ids"].shape()[1])
            generator = self._begun(given, 1, how)
            generator.set_inputs(tensors)
            (text,) = self._written(generator, [given], how)
        except (MemoryError, OrtdeployError):
            raise
        except Exception as error:
            raise _translated(error) from error
        return text

    def hear(
        self,
        bands: Array,
        first: Sequence[int],
        then: Callable[[Array], Sequence[int]] | None,
        hold: Callable[[Array, Sequence[int]], None],
        how: Writing,
    ) -> tuple[list[int], str]:
        """Return the tokens that are written of a window of sound, float32 [1, bands, frames], and why they ended.

        The text begins with the tokens `first`, and with those that `then` makes of the scores [vocabulary] that follow
        them. `hold` takes tokens out of the scores [..., vocabulary] that may not follow what was written. Raises
        OrtdeployError.
        """
        try:
            return self._hear(bands, first, then, hold, how)
        except (MemoryError, OrtdeployError):
            raise
        except Exception as error:
            raise _translated(error) from error

    def text_of(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens. Raises OrtdeployError."""
        try:
            return str(self._tokenizer.decode(np.array(tokens, np.int32))) if tokens else ""
        except Exception as error:
            raise _translated(error) from error

    def check(self, how: Writing) -> None:
        """Raise OrtdeployError if texts cannot be written so; for one token, so that no cache of a context is made."""
        try:
            genai().Generator(self._model, _params(self._model, how, 1, 1))
        except Exception as error:
            raise _translated(error) from error

    def tokens_of(self, prompt: str, *, framed: bool = False) -> Array:
        """Return the tokens of a prompt, int32 [tokens]. Raises OrtdeployError.

        `framed`: with those that the tokenizer puts around a text, such as the one that begins it, as transformers has
        it. A prompt that has that one itself gets no other.
        """
        check_whole(prompt)
        try:
            self._tokenizer.update_options(add_special_tokens=str(framed).lower())
            found = encoded(self._tokenizer, prompt)
        except Exception as error:
            raise _translated(error) from error
        begins_twice = framed and found[:2].tolist() == [self._tokenizer.bos_token_id] * 2
        return found[1:] if begins_twice and len(self.tokens_of(prompt)) < len(found) else found

    def _hear(
        self,
        bands: Array,
        first: Sequence[int],
        then: Callable[[Array], Sequence[int]] | None,
        hold: Callable[[Array, Sequence[int]], None],
        how: Writing,
    ) -> tuple[list[int], str]:
        library = genai()
        given, new = len(first), how.max_new_tokens or how.context
        most = how.context if then is not None else min(how.context, given + new)
        generator, tensors = library.Generator(self._model, _params(self._model, how, 1, most)), library.NamedTensors()
        tensors["audio_features"], tensors["input_ids"] = bands, np.array([first], np.int32)
        generator.set_inputs(tensors)
        if then is not None:
            more = then(np.array(generator.get_logits())[0, -1])
            generator.append_tokens(np.array(more, np.int32))
            given += len(more)
        written: list[int] = []
        while not generator.is_done() and len(written) < new:
            if self._early.is_set():
                raise OrtdeployError("the text was ended")
            scores = np.array(generator.get_logits(), np.float32)
            hold(scores[0, 0] if how.num_beams == 1 else scores, written)
            generator.set_logits(scores)
            generator.generate_next_token()
            self.progressed = time.perf_counter()
            written.append(int(generator.get_next_tokens()[0]))
        if how.num_beams > 1:
            written = [int(one) for one in generator.get_sequence(0)[given:]]
        end = next((place for place, one in enumerate(written) if one in self._ends), None)
        ended = end is not None or (how.num_beams > 1 and len(written) < most - given)  # beams leave the end out
        return written[:end], "end" if ended else "length" if len(written) == new else "context"

    def _write(self, prompts: Sequence[Array], how: Writing, adapters: Sequence[str]) -> list[Written]:
        given = max(map(len, prompts))
        generator = self._begun(given, len(prompts), how)
        for name in adapters:
            generator.set_active_adapter(self._adapters, name)
        filled = [np.pad(prompt, (0, given - len(prompt)), constant_values=self.filler) for prompt in prompts]
        generator.append_tokens(np.concatenate(filled))
        return self._written(generator, [len(prompt) for prompt in prompts], how)

    def _begun(self, given: int, rows: int, how: Writing) -> Any:
        """Return what writes `rows` texts after `given` tokens each. Raises OrtdeployError."""
        _check_length(given, how.context)
        if how.log_probabilities and how.num_beams > 1:
            raise OrtdeployError(
                f"log_probabilities are not known of texts that {how.num_beams} beams write; set num_beams to 1, or "
                "leave the column out"
            )
        return genai().Generator(self._model, _params(self._model, how, rows, how.most(given)))

    def _written(self, generator: Any, lengths: Sequence[int], how: Writing) -> list[Written]:
        """Return the texts that follow prompts of these lengths, which were read."""
        given = max(lengths)
        room = how.most(given) - given
        texts = [_Text(self._tokenizer, self._ends, how, length, room) for length in lengths]
        while not generator.is_done():
            if self._early.is_set():
                raise OrtdeployError("the text was ended")
            scores = generator.get_logits() if how.log_probabilities else None
            generator.generate_next_token()
            self.progressed = time.perf_counter()
            if how.num_beams > 1:
                continue
            drawn = generator.get_next_tokens()
            chances = np.zeros(len(texts), np.float32) if scores is None else _log_probabilities(scores, drawn)
            for text, token, chance in zip(texts, drawn, chances, strict=True):
                text.add(int(token), float(chance))
            if all(text.reason for text in texts):
                break
        if how.num_beams > 1:
            for index, text in enumerate(texts):
                text.add_best(generator.get_sequence(index)[given:], room)
        return [text.written() for text in texts]


class _Text:
    """A text as it grows."""

    def __init__(self, tokenizer: Any, ends: set[int], how: Writing, given: int, room: int) -> None:
        """`given` are the tokens of its prompt, `room` is for those that are written."""
        self._stream = tokenizer.create_stream()
        self._ends, self._stop, self._given = ends, how.stop, given
        self._full = "length" if room == how.max_new_tokens else "context"
        self._text = ""
        self._chances: list[float] = []
        self._kept = how.log_probabilities
        self._begun = self._ended = time.perf_counter()
        self.reason = ""

    def add(self, token: int, chance: float = 0.0) -> None:
        """Take the next token, with its log probability."""
        if self.reason:
            return
        self._ended = time.perf_counter()
        if token in self._ends:
            self.reason = "end"
            return
        self._chances.append(chance)
        seen = max(0, len(self._text) - max(map(len, self._stop), default=0))
        self._text += self._stream.decode(token)
        places = [place for one in self._stop if (place := self._text.find(one, seen)) >= 0]
        if places:
            self._text, self.reason = self._text[: min(places)], "stop"

    def add_best(self, tokens: Array, most: int) -> None:
        """Take the best of several texts, int32 [tokens], of at most `most`: its end is left out, or filled up."""
        for token in tokens:
            self.add(int(token))
        if len(tokens) < most:
            self.reason = self.reason or "end"

    def written(self) -> Written:
        return Written(
            text=self._text,
            tokens=len(self._chances),
            finish_reason=self.reason or self._full,
            input_tokens=self._given,
            seconds=self._ended - self._begun,
            log_probabilities=np.array(self._chances if self._kept else (), dtype=np.float32),
        )


def refusal_of(folder: Path, how: Writing, *, senses: bool) -> str | None:
    """Return why GenAI does not open a folder, or writes no text so; None if it does. Raises OutOfMemoryError."""
    try:
        model, tokenizer, _ = _opened(folder, senses=senses)
        genai().Generator(model, _params(model, how, 1, 1))
        for text in HARD:
            encoded(tokenizer, text)
    except Exception as error:  # every error of the binding derives from Exception
        if says_no_memory(error):
            raise OutOfMemoryError(first_line(error)) from error
        return first_line(error).replace(f"{folder}/", "")
    return None


def _opened(folder: Path, *, senses: bool) -> tuple[Any, Any, Any]:
    """Return the model of a folder, its tokenizer, and what prepares pictures for one that sees."""
    library = genai()
    model = library.Model(library.Config(str(folder)))
    return model, library.Tokenizer(model), model.create_multimodal_processor() if senses else None


def _params(model: Any, how: Writing, rows: int, most: int) -> Any:
    """Return the parameters by which `rows` texts are written, of at most `most` tokens with the prompt.

    Raises OrtdeployError for beams and a schema: GenAI follows the schema along one of the beams.
    """
    if how.json_schema is not None and how.num_beams > 1:
        raise OrtdeployError(f"{how.num_beams} beams write no text that fits a json_schema; set num_beams to 1")
    params = genai().GeneratorParams(model)
    params.set_search_options(
        batch_size=rows,
        max_length=most,
        min_length=0,
        do_sample=how.do_sample and how.num_beams == 1,
        temperature=how.temperature or 1.0,
        top_p=how.top_p,
        top_k=how.top_k,
        repetition_penalty=how.repetition_penalty,
        num_beams=how.num_beams,
        num_return_sequences=1,
        random_seed=how.seed,
    )
    if how.json_schema is not None:
        params.set_guidance("json_schema", how.json_schema)
    return params


def _log_probabilities(scores: Array, tokens: Array) -> Array:
    """Return those of the tokens [rows] that scores [rows, 1, vocabulary] were drawn to, float32 [rows]."""
    rows = scores.reshape(len(tokens), -1, scores.shape[-1])[:, -1].astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    chosen = rows[np.arange(len(tokens)), tokens]
    found: Array = (chosen - np.log(np.exp(rows).sum(axis=1))).astype(np.float32)
    return found


def _check_length(given: int, context: int) -> None:
    """Raise OrtdeployError if a prompt leaves no room for a token, or has none itself."""
    if not given:
        raise OrtdeployError("the prompt has no token")
    if given >= context:
        raise OrtdeployError(
            f"the prompt has {given} tokens, and the model's context holds {context}, with at least one that is "
            f"written: {given - context + 1} too many"
        )


def _session_options(step: OpenSession, candidate: PlannedSession) -> dict[str, Any]:
    """Return session options and providers of a plan as GenAI's config has them: it writes out config entries."""
    options = {"log_severity_level": _ERRORS_ONLY} | {k: one for k, one in step.options.items() if k != "config"}
    if "logid" in options:
        options["log_id"] = options.pop("logid")
    if "graph_optimization_level" in options:
        options["graph_optimization_level"] = LEVELS[options["graph_optimization_level"]]
    options |= step.options.get("config", {})
    if step.cpu_fallback == "forbid" or CPU not in {provider.name for provider in candidate.providers}:
        options["session.disable_cpu_ep_fallback"] = "1"
    chain = [{PROVIDERS[one.name]: dict(one.options)} for one in candidate.providers if one.name != CPU]
    return {**options, "provider_options": chain}


def write_config(
    folders: Sequence[Path],
    beside: Path,
    options: Mapping[str, Mapping[str, Any]],
    runs: Mapping[str, Mapping[str, str]],
) -> None:
    """Write genai_config.json with these session and run options of each part, beside links to files that lack there.

    GenAI takes providers of a part but the decoder only from the file itself, not from what is laid over it. A store
    keeps each part in a folder of its own: of `folders`, that of the decoder is the first.
    """
    config = json.loads(read_text(folders[0] / CONFIG))
    decoder = config["model"]["decoder"]
    stages = {name: stage for one in decoder.get("pipeline", ()) for name, stage in one.items()}
    if stages:
        decoder["session_options"] = {"provider_options": []}
    for part, said in options.items():
        model = stages.get(part) or config["model"][part]
        model.pop("inherit_session_options", None)
        model["session_options"] = {**model.get("session_options", {}), **said}
        model["run_options"] = runs[part]
    files = {file.name: file for folder in reversed(folders) for file in folder.iterdir() if file.is_file()}
    for name, file in files.items():
        if name != CONFIG and not (beside / name).exists():
            try:
                (beside / name).symlink_to(file)
            except OSError:  # Windows lets few users make them
                (beside / name).hardlink_to(file)
    (beside / CONFIG).write_text(json.dumps(config), encoding="utf-8")


def _translated(error: Exception) -> OrtdeployError:
    message = first_line(error)
    return OutOfMemoryError(message) if says_no_memory(error) else OrtdeployError(message)
