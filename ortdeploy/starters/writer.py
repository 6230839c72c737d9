"""Folders of ONNX Runtime GenAI, as its model builder or Olive write them: models that write text."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress

from ortdeploy.files.opening import read_text
from ortdeploy.manifest.write import scalar
from ortdeploy.presets.chat_templates import read_chat_template
from ortdeploy.starters import provenance, samples, yaml_text
from ortdeploy.starters.model_info import Starter, Subject
from ortdeploy.starters.provenance import Page

FAMILY, _HEARS = "a model that writes", "a model that writes down what is said"
_PROMPT = "prompt\nWhat is a pump for?\n"
_TOKENS = 100


def recognise(subject: Subject) -> Iterator[Starter]:
    """Yield a manifest that writes a text for each prompt, or for each recording if the folder has an encoder."""
    if subject.is_folder and (subject.model / "genai_config.json").is_file():
        files = _files(subject)
        yield _listener(subject, files) if "encoder" in files else _starter(subject, files)


def _files(subject: Subject) -> dict[str, str]:
    """Return the files of the models of a folder by their parts, if genai_config.json names them."""
    with suppress(OSError, ValueError, RecursionError, AttributeError, LookupError, TypeError):
        said = json.loads(read_text(subject.model / "genai_config.json"))["model"]
        files = {part: said[part].get("filename") for part in ("encoder", "decoder") if part in said}
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
    return f"    components: {{{', '.join(named)}}}\n"


def _listener(subject: Subject, files: Mapping[str, str]) -> Starter:
    text = (
        yaml_text.head(
            "A model that writes down what is said, by ONNX Runtime GenAI.",
            "It hears windows of 30 seconds, one after the other; segments begin and end in seconds.",
        )
        + "pipelines:\n  hear:\n    preset: generate\n"
        + f"    from: {provenance.graph('path', scalar(subject.path))}\n"
        + _components(files)
        + f"    providers: {provenance.choice('providers', '[CPU]')}\n"
        + f"    timestamps: {provenance.choice('timestamps', 'true')}\n\n"
        + "jobs:\n  run:\n    pipeline: hear\n"
        + yaml_text.recordings_section(
            subject, "audio", "columns: {audio: samples}", rate=provenance.graph("rate", samples.RATE)
        )
        + yaml_text.output(subject)
    )
    made = {} if subject.data else {yaml_text.recording_path(subject): samples.recording()}
    return Starter(family=_HEARS, page=Page(marked=text), files=made, takes_long=True)


def _starter(subject: Subject, files: Mapping[str, str]) -> Starter:
    chat = ""
    with suppress(OSError, ValueError):
        read_chat_template(subject.model)
        chat = f"    chat: {provenance.beside('chat prompt', 'prompt')}\n"
    sample = f"{subject.stem}-prompts.csv"
    text = (
        yaml_text.head(
            "A model that writes, by ONNX Runtime GenAI. How it draws tokens is genai_config.json's.",
            "ortdeploy lock pins the folder by its digest.",
        )
        + "pipelines:\n  write:\n    preset: generate\n"
        + f"    from: {provenance.graph('path', scalar(subject.path))}\n"
        + _components(files)
        + f"    providers: {provenance.choice('providers', '[CPU]')}\n"
        + chat
        + f"    max_new_tokens: {provenance.convention(f'max_new_tokens {_TOKENS}', _TOKENS)}\n\n"
        + "jobs:\n  run:\n    pipeline: write\n"
        + yaml_text.input_section(subject, sample, "key: [prompt]")
        + yaml_text.output(subject)
    )
    made = {} if subject.data else {sample: _PROMPT.encode()}
    return Starter(family=FAMILY, page=Page(marked=text), files=made, takes_long=True)
