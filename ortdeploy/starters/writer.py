"""Folders of ONNX Runtime GenAI, as its model builder or Olive write them: models that write text."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from ortdeploy.files.opening import read_text
from ortdeploy.manifest.pipelines import GENERATE, KNOWN_COMPONENTS
from ortdeploy.manifest.write import flow, scalar
from ortdeploy.presets.chat_templates import read_chat_template
from ortdeploy.sources.catalogue import SOURCES
from ortdeploy.starters import provenance, samples, yaml_text
from ortdeploy.starters.model_info import Starter, Subject
from ortdeploy.starters.pictures import sample_path, sample_pictures
from ortdeploy.starters.provenance import Page

FAMILY, _HEARS = "a model that writes", "a model that writes down what is said"
_SEES = "a model that writes about pictures"
_PROMPT, _QUESTION = "prompt\nWhat is a pump for?\n", "What does the picture show?"
_TOKENS, _SIDE = 100, 224
_ASKED = ("prompt", "question", "instruction", "query", "text", "note")
"""Names of columns that people give to what a model is asked."""


def recognise(subject: Subject) -> Iterator[Starter]:
    """Yield a manifest that writes a text for each prompt, recording or picture, by the parts of the folder."""
    if subject.is_folder and (subject.model / "genai_config.json").is_file():
        files = _files(subject)
        made = _listener if "encoder" in files else _describer if "vision" in files else _starter
        yield made(subject, files)


def _files(subject: Subject) -> dict[str, str]:
    """Return the files of the models of a folder by their parts, if genai_config.json names them."""
    with suppress(OSError, ValueError, RecursionError, AttributeError, LookupError, TypeError):
        said = json.loads(read_text(subject.model / "genai_config.json"))["model"]
        files = {part: said[part].get("filename") for part in KNOWN_COMPONENTS[GENERATE] if part in said}
        files |= {
            name: stage.get("filename") for one in said["decoder"].get("pipeline", ()) for name, stage in one.items()
        }
        return {part: file for part, file in files.items() if isinstance(file, str)}
    return {}


def _components(files: Mapping[str, str]) -> str:
    """Return the line of a manifest that names models of other names than the usual one, or several."""
    if set(files.items()) <= {("decoder", "model.onnx")}:
        return ""
    named = [f"{scalar(part)}: {{file: {provenance.graph('file', scalar(file))}}}" for part, file in files.items()]
    return f"components: {{{', '.join(named)}}}"


def _listener(subject: Subject, files: Mapping[str, str]) -> Starter:
    text = (
        yaml_text.head(
            "A model that writes down what is said, by ONNX Runtime GenAI.",
            "It hears windows of 30 seconds, one after the other; segments begin and end in seconds.",
        )
        + yaml_text.preset(
            subject,
            "hear",
            "generate",
            f"timestamps: {provenance.choice('timestamps', 'true')}",
            components=_components(files),
        )
        + yaml_text.recordings_section(
            subject, "audio", "columns: {audio: samples}", rate=provenance.graph("rate", samples.RATE)
        )
        + yaml_text.output(subject)
    )
    made = yaml_text.sample_recording(subject)
    return Starter(family=_HEARS, page=Page(marked=text), files=made, takes_long=True)


def _describer(subject: Subject, files: Mapping[str, str]) -> Starter:
    question = f"values: {{prompt: {provenance.choice('prompt', scalar(_QUESTION))}}}"
    asked, named = _prompt_column(subject), _pictures_column(subject)
    more: list[str] = []
    prepare, lines = "", ["columns: {images: pixels}", question, "key: [path]"]
    if named is not None:
        column, folder = named
        columns = {"image_files": column} | ({"prompt": asked} if asked else {})
        lines = [f"columns: {provenance.data('columns', flow(columns))}", *([] if asked else [question])]
        more = [f"image_folder: {provenance.data('image_folder', scalar(folder))}"]
        if not _is_list(subject, column):
            prepare = "    prepare: {image_files: [{expand: 0}]}  # one picture a row\n"
    text = (
        _writing(subject, files, "describe", "A model that writes about pictures, by ONNX Runtime GenAI.", *more)
        + yaml_text.input_section(subject, sample_path(subject), *lines)
        + prepare
        + yaml_text.output(subject)
    )
    made = sample_pictures(subject, _SIDE, _SIDE)
    return Starter(family=_SEES, page=Page(marked=text), files=made, takes_long=True)


def _pictures_column(subject: Subject) -> tuple[str, str] | None:
    """Return the column of a table that names pictures, and the folder below which these lie; None without one."""
    if subject.data is None:
        return None
    root, place = subject.folder.resolve(), (subject.folder / subject.data.patterns[0]).parent.resolve()
    folders = [root, place, *(one.resolve() for one in sorted(place.iterdir()) if one.is_dir())]
    for column, value in subject.data.first.items():
        paths = [value] if isinstance(value, str) else [str(one) for one in value] if _is_list(subject, column) else []
        if not paths or Path(paths[0]).suffix.lower() not in SOURCES["image"].SUFFIXES:
            continue
        for folder in folders:
            if folder.is_relative_to(root) and all(os.path.isfile(folder / one) for one in paths):  # noqa: PTH113  a path may be any text
                return column, folder.relative_to(root).as_posix()
    return None


def _is_list(subject: Subject, column: str) -> bool:
    value = subject.data.first[column] if subject.data is not None else ""
    return isinstance(value, list | tuple | np.ndarray) and np.ndim(value) == 1


def _prompt_column(subject: Subject) -> str | None:
    """Return the column of a table whose name is that of what a model is asked; None without one."""
    names = subject.data.first if subject.data is not None else ()
    return next((name for name in names if name.lower() in _ASKED), None)


def _starter(subject: Subject, files: Mapping[str, str]) -> Starter:
    sample = f"{subject.stem}-prompts.csv"
    asked = _prompt_column(subject)
    lines = ["key: [prompt]"]
    if asked not in {None, "prompt"}:
        lines = [f"columns: {provenance.data('columns', flow({'prompt': asked}))}"]
    text = (
        _writing(subject, files, "write", "A model that writes, by ONNX Runtime GenAI.")
        + yaml_text.input_section(subject, sample, *lines)
        + yaml_text.output(subject)
    )
    made = {} if subject.data else {sample: _PROMPT.encode()}
    return Starter(family=FAMILY, page=Page(marked=text), files=made, takes_long=True)


def _writing(subject: Subject, files: Mapping[str, str], name: str, told: str, *more: str) -> str:
    """Return the head of a manifest, its pipeline, and the begin of its job; `told` says what was recognised.

    `more` are further lines of the pipeline.
    """
    further = [*more, f"max_new_tokens: {provenance.convention(f'max_new_tokens {_TOKENS}', _TOKENS)}"]
    with suppress(OSError, ValueError):
        read_chat_template(subject.model)
        further.insert(0, f"chat: {provenance.beside('chat prompt', 'prompt')}")
    return yaml_text.head(
        f"{told} How it draws tokens is genai_config.json's.", "ortdeploy lock pins the folder by its digest."
    ) + yaml_text.preset(subject, name, "generate", *further, components=_components(files))
