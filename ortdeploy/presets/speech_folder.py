"""Reads what a folder of ONNX Runtime GenAI says of speech: Whisper's tokens, and how it wants to hear.

Bands of mel are computed here, as Whisper wants them. So a folder that wants others is refused. The checkpoint's
`generation_config.json`, if it lies in the folder, says which tokens are never written; GenAI's model builder leaves it
out.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct, ValidationError, convert
from msgspec.structs import asdict

from ortdeploy.facts.models import ModelFacts
from ortdeploy.manifest.pipelines import PresetSpec
from ortdeploy.presets.folder import FolderError, PresetFiles
from ortdeploy.presets.speech import FFT, HOP, STAMP, WINDOW, SpeechTokens

_PROCESSOR, _GENERATION = "audio_processor_config.json", "generation_config.json"
_HEARD = {"hop_length": HOP, "n_fft": FFT, "frame_length": FFT, "chunk_size": WINDOW * HOP // 16_000}
_ONE_LANGUAGE = 51_864
"""The vocabulary of models that know English alone; their tokenizers name other languages all the same."""


class _Generation(Struct, frozen=True):
    """What is taken from generation_config.json."""

    suppress_tokens: tuple[int, ...] | None = None
    begin_suppress_tokens: tuple[int, ...] | None = None
    max_initial_timestamp_index: int | None = None


def read_speech(
    files: PresetFiles, preset: PresetSpec, added: Mapping[str, int], vocabulary: Any, encoder: ModelFacts
) -> dict[str, Any]:
    """Return the bands and the tokens of a folder that hears. Raises FolderError, OSError."""
    _check_manifest(preset)
    if not (files.folder / "tokenizer.json").is_file():
        raise FolderError(f"There is no {preset.folder}/tokenizer.json. Copy that of the checkpoint into the folder.")
    heard = next((one.tensor.shape for one in encoder.inputs if one.tensor.shape), None)
    if heard is None or len(heard) != 3 or type(heard[1]) is not int or heard[2] not in {WINDOW, None}:  # noqa: PLR2004  rows, bands and frames
        shape = "nothing" if heard is None else f"[{', '.join(map(str, heard))}]"
        raise FolderError(f"{preset.folder}: the encoder takes {shape}, and Whisper's [rows, bands, {WINDOW}].")
    _check_processor(files, preset.folder, heard[1])
    tokens = _tokens(preset.folder, added, vocabulary, _generation(files, preset.folder))
    language = preset.arguments.get("language")
    if tokens.languages and language is not None and language not in tokens.languages:
        raise FolderError(f"{preset.folder} knows no language {language}, but {', '.join(sorted(tokens.languages))}.")
    if not tokens.languages and (language not in {None, "en"} or preset.arguments.get("translate")):
        raise FolderError(f"{preset.folder} knows English alone. Leave language and translate out.")
    return {"bands": heard[1], "tokens": asdict(tokens)}


def _check_manifest(preset: PresetSpec) -> None:
    for key in ("system", "json_schema", "stop"):
        if key in preset.arguments:
            raise FolderError(f"{preset.folder} hears recordings, so {key} has no effect. Leave it out.")
    if preset.adapters:
        raise FolderError(f"{preset.folder} hears recordings, and adapters are for models that read. Leave them out.")
    beams = preset.arguments.get("num_beams", 1)
    if beams > 1 and preset.arguments.get("timestamps"):
        raise FolderError(f"{preset.folder}: {beams} beams write no timestamps. Leave num_beams or timestamps out.")


def _check_processor(files: PresetFiles, shown: str, bands: int) -> None:
    """Raise FolderError if the folder's own processor would hear in another way."""
    if not (files.folder / _PROCESSOR).is_file():
        return
    try:
        found = json.loads(files.read(_PROCESSOR))
        wanted = {**_HEARD, "n_mel": bands}
        for key, value in _settings(found):
            if key in wanted and value != wanted[key]:
                raise FolderError(f"{shown}/{_PROCESSOR} has {key} {value}, and Whisper's is {wanted[key]}.")
    except (ValueError, RecursionError) as error:
        raise FolderError(f"{shown}/{_PROCESSOR} is no JSON text: {error}.") from error


def _settings(found: Any) -> Iterator[tuple[str, Any]]:
    """Yield all keys with their values, wherever they are."""
    inner = found.values() if isinstance(found, dict) else found if isinstance(found, list) else ()
    if isinstance(found, dict):
        yield from found.items()
    for one in inner:
        yield from _settings(one)


def _generation(files: PresetFiles, shown: str) -> _Generation:
    if not (files.folder / _GENERATION).is_file():
        return _Generation()
    try:
        return convert(json.loads(files.read(_GENERATION)), _Generation)
    except (ValueError, RecursionError, ValidationError) as error:
        raise FolderError(f"{shown}/{_GENERATION} cannot be read: {error}.") from error


def _tokens(shown: str, added: Mapping[str, int], vocabulary: Any, said: _Generation) -> SpeechTokens:
    needed = {
        "start": "<|startoftranscript|>", "end": "<|endoftext|>", "no_timestamps": "<|notimestamps|>",
        "first_stamp": "<|0.00|>",
    }  # fmt: skip
    for token in needed.values():
        if token not in added:
            raise FolderError(f"{shown}/tokenizer.json has no token {token}, so it is none of Whisper's.")
    found = {name: added[token] for name, token in needed.items()}
    last = found["first_stamp"] + round(WINDOW * HOP / 16_000 / STAMP)
    never = (*(said.suppress_tokens or ()), *(said.begin_suppress_tokens or ()))
    if type(vocabulary) is not int or not all(0 <= one < vocabulary for one in (*never, *found.values(), last)):
        raise FolderError(f"{shown} has tokens for speech beyond the {vocabulary} of its model.")
    within = said.max_initial_timestamp_index
    several = vocabulary != _ONE_LANGUAGE and "<|transcribe|>" in added
    return SpeechTokens(
        **found,
        transcribe=added.get("<|transcribe|>"),
        translate=added.get("<|translate|>"),
        languages=_languages(added, vocabulary) if several else {},
        never=said.suppress_tokens or (),
        never_first=said.begin_suppress_tokens or (),
        **({} if within is None else {"stamps_first": max(0, within) + 1}),
    )


def _languages(added: Mapping[str, int], vocabulary: int) -> dict[str, int]:
    """Return the tokens of languages: those with two or three letters."""
    codes = {token[2:-2]: one for token, one in added.items() if token.startswith("<|") and token.endswith("|>")}
    known = {code: one for code, one in codes.items() if 2 <= len(code) <= 3 and code.isalpha() and one < vocabulary}  # noqa: PLR2004  as ISO 639 has them
    return dict(sorted(known.items(), key=lambda item: item[1]))
