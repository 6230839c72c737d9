"""Folders of ONNX Runtime GenAI, as its model builder or Olive write them: models that write text."""

from collections.abc import Iterator
from contextlib import suppress

from ortdeploy.manifest.write import scalar
from ortdeploy.presets.chat_templates import read_chat_template
from ortdeploy.starters import provenance, yaml_text
from ortdeploy.starters.model_info import Starter, Subject
from ortdeploy.starters.provenance import Page

FAMILY = "a model that writes"
_PROMPT = "prompt\nWhat is a pump for?\n"
_TOKENS = 100


def recognise(subject: Subject) -> Iterator[Starter]:
    """Yield a manifest that writes a text for each prompt."""
    if subject.is_folder and (subject.model / "genai_config.json").is_file():
        yield _starter(subject)


def _starter(subject: Subject) -> Starter:
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
        + f"    providers: {provenance.choice('providers', '[CPU]')}\n"
        + chat
        + f"    max_new_tokens: {provenance.convention(f'max_new_tokens {_TOKENS}', _TOKENS)}\n\n"
        + "jobs:\n  run:\n    pipeline: write\n"
        + yaml_text.input_section(subject, sample, "key: [prompt]")
        + yaml_text.output(subject)
    )
    files = {} if subject.data else {sample: _PROMPT.encode()}
    return Starter(family=FAMILY, page=Page(marked=text), files=files, takes_long=True)
