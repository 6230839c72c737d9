"""Reads a folder of ONNX Runtime GenAI: what it holds beside the model, and what of that ortdeploy can answer for.

`genai_config.json` came with the model. It may name other files, libraries and providers, all of which would be opened;
so what is not known is refused. What it says of providers is not used: the manifest's chain is what runs.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, ValidationError, convert, field
from msgspec.structs import asdict, replace

from ortdeploy.facts.models import DiffusionFacts, ModelFacts, ValueFacts
from ortdeploy.facts.problems import Problem
from ortdeploy.manifest.pipelines import OF_SPEECH, SPEECH, WITHOUT_ADAPTERS, PresetSpec
from ortdeploy.presets.chat_templates import TemplateError, read_chat_template
from ortdeploy.presets.folder import FolderError, PresetFiles, folder_digest, missing_folder
from ortdeploy.presets.row_columns import COLUMNS
from ortdeploy.presets.sense_folder import FAMILIES, read_sense
from ortdeploy.presets.speech import WINDOW
from ortdeploy.presets.speech_folder import read_speech
from ortdeploy.tensors.elements import numpy_dtype
from ortdeploy.tensors.types import ROWS, Shape, TensorType

CONFIG = "genai_config.json"
_TOKENIZER = "tokenizer.json"
_BESIDE = (".json", ".txt", ".model", ".jinja")
_MOST_FILES, _MOST_BYTES = 64, 256 * 2**20
_RESULTS = {
    "tokens": "int64", "input_tokens": "int64", "seconds": "float64", "log_probabilities": "float32",
    "begin": "float64", "end": "float64",
}  # fmt: skip
"""The element types of results that are no text."""
_LISTS = ("log_probabilities", "segments", "begin", "end")
"""Results of which a row has several."""
_DRAWN = ("temperature", "top_p", "top_k", "seed")
_GREEDY = {"do_sample": False, "temperature": 1.0, "top_p": 1.0, "top_k": 50, "repetition_penalty": 1.0, "num_beams": 1}
"""What GenAI does if neither the manifest nor genai_config.json says more."""


_KNOWN = (
    "ortdeploy runs models that turn text into text, Whisper's, which turn speech into text, and models that take "
    f"pictures or recordings beside text, of the types {', '.join(FAMILIES)}"
)
_SHARED = ("intra_op_num_threads", "inter_op_num_threads", "enable_cpu_mem_arena", "enable_mem_pattern")
_Count = Annotated[int, Meta(ge=0, lt=2**31)]


class _SessionOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The session options of a config that name no file and no library."""

    log_id: str | None = None
    log_severity_level: int | None = None
    log_verbosity_level: int | None = None
    intra_op_num_threads: int | None = None
    inter_op_num_threads: int | None = None
    enable_cpu_mem_arena: bool | None = None
    enable_mem_pattern: bool | None = None
    provider_options: tuple[dict[str, dict[str, Any]], ...] = ()


class _Part(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model of a config: its file, and the names and sizes of what goes through it.

    A decoder without a file is a `pipeline` of several models, by their names.
    """

    filename: str = ""
    pipeline: tuple[dict[str, "_Stage"], ...] = ()
    session_options: _SessionOptions = _SessionOptions()
    inputs: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    sliding_window: dict[str, Any] = field(default_factory=dict)
    hidden_size: _Count = 0
    head_size: _Count = 0
    num_attention_heads: _Count = 0
    num_hidden_layers: _Count = 0
    num_key_value_heads: _Count = 0


class _Sense(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model that sees or hears beside text: the file of its processor, and sizes by which GenAI divides."""

    config_filename: Annotated[str, Meta(pattern=r"^[\w-][\w.-]*\.json$")] | None = None
    spatial_merge_size: Annotated[int, Meta(ge=1, le=64)] = 2
    patch_size: Annotated[int, Meta(ge=1, le=1024)] = 14
    window_size: _Count = 0
    tokens_per_second: float = 2.0


class _Stage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a decoder: its file, and when it runs."""

    filename: str
    session_options: _SessionOptions = _SessionOptions()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    output_names_forwarder: dict[str, str] = field(default_factory=dict)
    run_on_prompt: bool = True
    run_on_token_gen: bool = True
    is_lm_head: bool = False
    inherit_session_options: bool = False
    reset_session_idx: int = -1


class _Vocabulary(Struct, frozen=True):
    """The tokens of a tokenizer: their ids by text, or a list in the order of ids."""

    vocab: dict[str, Annotated[int, Meta(ge=0)]] | list[Any]


class _Added(Struct, frozen=True):
    """A token that is no text, or none that was learned."""

    id: Annotated[int, Meta(ge=0)]
    content: str


class _Tokenizer(Struct, frozen=True):
    """What is looked at of tokenizer.json; tokens that were added to fill rows up may be beyond the model's."""

    model: _Vocabulary
    added_tokens: tuple[_Added, ...] = ()


def read_generation(root: Path, preset: PresetSpec, models: Mapping[str, ModelFacts]) -> DiffusionFacts:
    """Return what goes in and comes out, what genai_config.json says, and the digest of what lies beside the model."""
    bare = DiffusionFacts(inputs=tuple(_inputs(preset)), outputs=tuple(_outputs(preset)))
    parts = {part: models[name] for part, name in preset.parts.items()}
    problem = _vain(preset) or _taken_names(preset) or missing_folder(root, preset)
    if problem is not None:
        return replace(bare, problem=problem)
    files = PresetFiles(root / preset.folder)
    try:
        digest = _read_files(files, preset.folder)
        about = _about(files, preset, parts)
        added = _added_tokens(files, preset.folder, about["vocabulary"])
        problem = next((one.problem for one in parts.values() if one.problem), None)
        if problem is None and preset.task == SPEECH:
            about["speech"] = read_speech(files, preset, added, about["vocabulary"], parts["encoder"])
        elif preset.task != "none":
            read_chat_template(root / preset.folder)
    except TemplateError as error:
        problem = Problem(kind="preset", detail=f"{preset.folder} cannot chat: {error}. Leave chat and system out.")
    except (FolderError, OSError) as error:
        problem = Problem(kind="preset", detail=str(error))
    if problem is not None:
        return replace(bare, problem=problem)
    return replace(bare, sha256=digest, folder_sha256=folder_digest(digest, parts), files=files.hashed, ports=about)


def search_of(preset: PresetSpec, facts: DiffusionFacts) -> dict[str, Any]:
    """Return how texts are written: what the manifest says, what it leaves to genai_config.json, and the seed.

    A manifest that says how tokens are drawn means that they are; without a temperature of its own, the folder's holds.
    """
    said = facts.ports.get("search", {})
    found = {key: said.get(key, value) for key, value in _GREEDY.items()}
    drawn = [key for key in _DRAWN if key in preset.arguments]
    wanted = preset.arguments.get("temperature", found["temperature"]) != 0  # 0 takes the best, as GenAI has it
    found["do_sample"] = wanted and (bool(drawn) or found["do_sample"])
    if wanted and drawn:
        found["num_beams"] = 1  # beams draw nothing; a manifest that names both is refused
    context = {"context_length": facts.ports.get("context_length", 0)}
    return {**found, "seed": 0, **{key: preset.arguments[key] for key in preset.arguments}, **context}


def _inputs(preset: PresetSpec) -> Sequence[ValueFacts]:
    rows = (1,) if preset.row_by_row else (ROWS,)
    name = {"messages": "messages", SPEECH: "audio"}.get(preset.task, "prompt")
    taken = TensorType("float32", (*rows, "samples")) if name == "audio" else TensorType("string", rows)
    unknown = {"stop" if name == "audio" else "language", *(["num_beams"] if preset.sees else [])}
    of_rows = [
        ValueFacts(name=name, kind="tensor", tensor=TensorType(dtype, rows), default=())
        for name, dtype in COLUMNS.items()
        if name not in unknown
    ]
    return [ValueFacts(name=name, kind="tensor", tensor=taken), *_sensed(preset, rows), *of_rows]


def _sensed(preset: PresetSpec, rows: Shape) -> Sequence[ValueFacts]:
    """Return what a model takes beside text: of one that sees and hears, either; pictures as such or by their paths."""
    if not preset.sees:
        return []
    taken = {"images": TensorType("uint8", (*rows, None, None, None), "NHWC")}
    if "speech" in preset.parts:
        taken["audio"] = TensorType("float32", (*rows, "samples"))
    default = () if len(taken) > 1 or preset.image_folder else None
    found = [ValueFacts(name=name, kind="tensor", tensor=tensor, default=default) for name, tensor in taken.items()]
    if preset.image_folder:
        paths = TensorType("string", (*rows, None))
        found.append(ValueFacts(name="image_files", kind="tensor", tensor=paths))
    return found


def _outputs(preset: PresetSpec) -> Sequence[ValueFacts]:
    kinds = {name: _RESULTS.get(name, "string") for name in preset.results}
    kinds |= preset.answers
    shapes: dict[str, Shape] = dict.fromkeys(_LISTS, (ROWS, None))
    return [
        ValueFacts(name=name, kind="tensor", tensor=TensorType(dtype, shapes.get(name, (ROWS,))), ragged=name in _LISTS)
        for name, dtype in kinds.items()
    ]


def _vain(preset: PresetSpec) -> Problem | None:
    """Return the problem of keys that have no effect beside others."""
    said, detail = preset.arguments, None
    drawn = [key for key in _DRAWN if key in said]
    if drawn and said.get("num_beams", 1) > 1 and said.get("temperature") != 0:
        detail = f"Beams draw no tokens, so {' and '.join(drawn)} would have no effect beside num_beams."
    if preset.task == "none" and "system" in said:
        detail = "With chat: none nothing goes through the chat template, so system would have no effect."
    return None if detail is None else Problem(kind="preset", detail=f"{detail} Leave one of them out.")


def _taken_names(preset: PresetSpec) -> Problem | None:
    """Return the problem of a schema whose properties are named as other results are."""
    taken = set(preset.answers).intersection(preset.results)
    if not taken:
        return None
    names = ", ".join(sorted(taken))
    return Problem(kind="preset", detail=f"json_schema names properties as other results are: {names}. Rename them.")


def _read_files(files: PresetFiles, shown: str) -> str:
    """Read the small files of the folder, and return the digest of all of them. Raises OSError, FolderError."""
    names = sorted(one.name for one in files.folder.iterdir() if one.suffix in _BESIDE and one.is_file())
    size = sum((files.folder / name).stat().st_size for name in names)
    if len(names) > _MOST_FILES or size > _MOST_BYTES:
        raise FolderError(f"{shown} has {len(names)} files of {size} bytes beside its model, which are too many.")
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name}\0".encode())
        digest.update(files.read(name))
    return digest.hexdigest()


def _about(files: PresetFiles, preset: PresetSpec, models: Mapping[str, ModelFacts]) -> dict[str, Any]:
    """Return what of the config counts; raise FolderError for what ortdeploy does not know."""
    where, config = f"{preset.folder}/{CONFIG}", files.read_object(CONFIG, preset.folder)
    said, search = config.get("model"), config.get("search", {})
    if not isinstance(said, dict) or not isinstance(search, dict):
        raise FolderError(f"{where} has no object model: it is no config of ONNX Runtime GenAI.")
    _check_keys(config, said, preset, where)
    decoder = _part(said.get("decoder"), "decoder", where)
    parts = _parts(said, decoder, preset, where)
    length = said.get("context_length")
    if type(length) is not int or not 0 < length < 2**31:
        raise FolderError(f"{where}: model.context_length is {length}, which is no length.")
    if said.get("eos_token_id", []) == []:
        why = "so its texts would end at no token, or at the one that fills rows up"
        how = "Write the id of the token by which the model ends, which tokenizer_config.json names as eos_token"
        raise FolderError(f"{where} has no model.eos_token_id, {why}. {how}.")
    search = {key: value for key, value in search.items() if key in _GREEDY}
    for key, value in search.items():
        kind = type(_GREEDY[key])
        if type(value) not in {kind, int if kind is float else kind} or not math.isfinite(value) or value < 0:
            wanted = {int: "a whole number", float: "a number", bool: "true or false"}[kind]
            raise FolderError(f"{where}: search.{key} is {json.dumps(value)}, and must be {wanted}.")
    cached = length + (WINDOW // 2 if preset.task == SPEECH else 0)
    about: dict[str, Any] = {
        "context_length": length,
        "vocabulary": said.get("vocab_size"),
        "cache_bytes": cached * _cache_bytes(decoder, models),
        "search": search,
        "parts": {part: _said(one.session_options) for part, one in parts.items()},
    }
    senses = {part: one for part, one in parts.items() if isinstance(one, _Sense)}
    if senses:
        found = [read_sense(files, preset, said["type"], part, one.config_filename) for part, one in senses.items()]
        about["senses"] = dict(found)
        if preset.arguments.get("num_beams", search.get("num_beams", 1)) > 1:
            why = "GenAI makes no room for several beams of a prompt with pictures"
            raise FolderError(f"{preset.folder} sees pictures, and {why}. Set num_beams to 1.")
    return about


def _check_keys(config: Mapping[str, Any], said: Mapping[str, Any], preset: PresetSpec, where: str) -> None:
    """Raise FolderError for a key that ortdeploy does not know, or of a model that the manifest does not name."""
    strange = {key for key, value in said.items() if isinstance(value, dict | str)} - {*preset.parts, "decoder", "type"}
    kind = str(said.get("type"))
    if kind == "phi4mm":
        by = "which sees and hears by adapters of its folder"
        raise FolderError(f"{where} is of a model of type phi4mm, {by}, and {WITHOUT_ADAPTERS}. {_KNOWN}.")
    speech, senses = kind == "whisper", "hears" if kind == "whisper" else "sees"
    beside = [part for part in FAMILIES.get(kind, ()) if part == "vision" or part in said]
    needed = ["encoder", "decoder"] if speech else [*beside, "embedding", "decoder"] if beside else []
    if not set(needed) <= set(preset.parts):
        named = {part: said[part].get("filename") for part in needed if isinstance(said.get(part), dict)}
        files = [f"{part}: {{file: {file}}}" for part, file in named.items()]
        raise FolderError(f"{where} is of a model that {senses}. Name its parts: components: {{{', '.join(files)}}}.")
    if speech and preset.task != SPEECH:
        raise FolderError(f"{where} is of a model that hears and does not chat. Leave chat out.")
    if preset.image_folder and not beside:
        raise FolderError(f"{where} is of a model that does not see, so image_folder has no effect. Leave it out.")
    unheard = ", ".join(sorted({*OF_SPEECH} & {*preset.arguments})) if not speech else ""
    if unheard:
        raise FolderError(f"{where} is of a model that reads, so {unheard} has no effect. Leave it out.")
    for part in [one for one in ("encoder", "vision", "speech") if one in preset.parts and one not in needed]:
        raise FolderError(f"{where} is of a model of type {kind}, of which no {part} is known. {_KNOWN}.")
    if preset.sees and preset.adapters:
        raise FolderError(f"{where} is of a model that sees, and {WITHOUT_ADAPTERS}. Leave adapters out.")
    for key in sorted((set(config) - {"model", "search"}) | strange):
        raise FolderError(f"{where} has {key}, which ortdeploy does not know. {_KNOWN}.")


def _part(said: Any, part: str, where: str) -> _Part:
    """Return what a config says of a model. Raises FolderError."""
    try:
        return convert(said, _Sense if part in {"vision", "speech"} else _Part)
    except ValidationError as error:
        raise FolderError(f"{where}, model.{part}: {error}. {_KNOWN}.") from error


def _parts(said: Mapping[str, Any], decoder: _Part, preset: PresetSpec, where: str) -> dict[str, _Part | _Stage]:
    """Return the models of a config by their names, which are those of the manifest. Raises FolderError."""
    stages: dict[str, _Part | _Stage] = {name: one for some in decoder.pipeline for name, one in some.items()}
    if stages and set(stages) != set(preset.parts):
        named = ", ".join(f"{name}: {{file: {one.filename}}}" for name, one in stages.items())
        raise FolderError(f"{where} has a decoder in several parts. Name them all: components: {{{named}}}.")
    if stages and preset.adapters:
        raise FolderError(f"{where} has a decoder in several parts, and adapters are for one model. Leave them out.")
    parts = stages or {"decoder": decoder}
    for part in preset.parts:
        if part not in parts:
            parts[part] = _part(said.get(part), part, where)
        own, file = preset.files[part], parts[part].filename
        if file != own:
            raise FolderError(
                f"{where} names the {part} {file or 'nowhere'}, and the manifest {own}. If that is the model, write "
                f"components: {{{part}: {{file: {file}}}}}."
            )
    return parts


def _said(options: _SessionOptions) -> dict[str, Any]:
    """Return what a config says of the session of a part that a manifest may say too."""
    said = asdict(options)
    return {
        "session": {key: one for key, one in said.items() if key in _SHARED and one is not None},
        "providers": [name for one in options.provider_options for name in one],
    }


def _added_tokens(files: PresetFiles, shown: str, vocabulary: Any) -> Mapping[str, int]:
    """Return the tokens of tokenizer.json, where it is, that are not learned.

    Raise FolderError if it has no tokens, or some that the model does not know.
    """
    if not (files.folder / _TOKENIZER).is_file():
        return {}
    try:
        found = msgspec.json.decode(files.read(_TOKENIZER), type=_Tokenizer)
    except (ValueError, RecursionError) as error:
        raise FolderError(f"{shown}/{_TOKENIZER} is no tokenizer: {error}.") from error
    tokens = found.model.vocab
    highest = max([len(tokens) - 1, *(tokens.values() if isinstance(tokens, dict) else ())])
    if not tokens:
        raise FolderError(f"{shown}/{_TOKENIZER} has no tokens.")
    if isinstance(vocabulary, int) and highest >= vocabulary:
        why = f"has tokens beyond the {vocabulary} of {CONFIG}, so it belongs to another model."
        raise FolderError(f"{shown}/{_TOKENIZER} {why}")
    return {one.content: one.id for one in found.added_tokens}


def _cache_bytes(decoder: _Part, models: Mapping[str, ModelFacts]) -> int:
    """Return the bytes that keys and values of one token take, in all layers."""
    first = decoder.inputs.get("past_key_names", "past_key_values.%d.key").replace("%d", "0")
    inputs = (value for one in models.values() for value in one.inputs)
    kept = next((one.tensor.dtype for one in inputs if one.name == first), None)
    size = 4 if kept is None else numpy_dtype(kept).itemsize
    return 2 * size * decoder.num_hidden_layers * decoder.num_key_value_heads * decoder.head_size
