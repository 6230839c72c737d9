"""Finds the session, run and provider options that name files, by `x-path` in the schemas.

Kinds: `file` and `folder` must be there, `new-file` and `new-folder` are written by ONNX Runtime or the provider,
`library` is looked up by the provider unless it has a slash, `document` is a .json file or else the text itself, which
may name more of them;
`tokenizer` is a file, `vocabulary` a folder of an operation, `lines` a text file of one, `array` a .npy or .npz
file. All are relative to the manifest.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ortdeploy.manifest.pipelines import CONSTANT, walk
from ortdeploy.providers.catalogue import Provider, find_provider, short_name
from ortdeploy.providers.option_files import named_files, with_named_files
from ortdeploy.schemas import load_schema

if TYPE_CHECKING:
    from ortdeploy.manifest.document import Path
    from ortdeploy.manifest.spec import ModelSpec, ProviderSpec, Spec

_OPENED = ("file", "folder", "library", "document")
"""Kinds of paths in provider options that must be there and are read."""
WRITTEN = frozenset({"new-file", "new-folder"})
"""Kinds of paths that need not be there, because what the option is for makes them."""


class OptionPath(Struct, frozen=True, kw_only=True):
    """A path that an option names: where it is written, the path, its kind, and the provider whose option it is."""

    at: "Path"
    path: str
    kind: str
    provider: str = ""


def find_option_paths(spec: "Spec") -> Iterator[OptionPath]:
    """Yield every path that an option of a manifest names."""
    yield from operation_paths(spec)
    for entry in (entry for chain in spec.written_chains() for entry in chain):
        for file in named_files(find_provider(entry.name), entry.options):
            provider = short_name(entry.name)
            yield OptionPath(at=(*entry.at, "options", *file.at), path=file.path, kind=file.kind, provider=provider)
    for model in spec.models:
        for part, options in (("session", model.session), ("run", model.run)):
            for at, kind in _kinds(part).items():
                value = _value(options, at)
                if value is not None:
                    yield OptionPath(at=(*model.at, part, *at), path=value, kind=kind)


def paths_in_document(provider: str, option: str, text: str) -> tuple[str, ...]:
    """Say which paths the document names that lies in a file of its own: nothing makes them relative to it.

    Such a path would be taken from the folder in which ortdeploy was started, and nobody would have looked at it.
    """
    named = named_files(find_provider(provider), {option: json.loads(text)})
    return tuple(
        f'{".".join(file.at[1:])} names "{file.path}", and paths in such a file are not relative to the manifest. '
        f"Write {option} as a mapping in the manifest, where they are."
        for file in named
    )


def operation_paths(spec: "Spec") -> Iterator[OptionPath]:
    """Yield the files and folders that operations of pipelines, and presets, read."""
    for step in (step for pipeline in spec.pipelines for step in walk(pipeline.steps)):
        for option, kind in step.files.items():
            if option in step.options:
                at = (*step.at, option) if option == CONSTANT else (*step.at, "in", option)
                yield OptionPath(at=at, path=step.options[option], kind=kind)
    for pipeline in spec.pipelines:
        if pipeline.preset is not None and pipeline.preset.latents is not None:
            yield OptionPath(at=(*pipeline.at, "latents"), path=pipeline.preset.latents, kind="file")


def files_to_open(model: "ModelSpec", chains: "Iterable[Sequence[ProviderSpec]]") -> Iterator[str]:
    """Yield the paths of what is opened with a model's sessions beside its own files.

    Libraries of providers, and what options of providers, sessions and runs name. External data counts as the model's.
    """
    for entry in (entry for chain in chains for entry in chain):
        if entry.library is not None:
            yield entry.library
        named = named_files(find_provider(entry.name), entry.options)
        yield from (file.path for file in named if file.kind in _OPENED)
    for part, options in (("session", model.session), ("run", model.run)):
        for at, kind in _kinds(part).items():
            value = _value(options, at)
            if value is not None and kind == "file":
                yield value


Full = Callable[[str], str]
"""Returns the full path of what a manifest names."""


def with_full_paths(part: str, options: Mapping[str, Any], full_path: Full) -> dict[str, Any]:
    """Return session options (`part` is session) or run options with their paths in full."""
    full = {**options, "config": dict(options["config"])} if "config" in options else dict(options)
    for at in _kinds(part):
        value = _value(options, at)
        if value is not None:
            (full["config"] if len(at) > 1 else full)[at[-1]] = full_path(value)
    return full


def with_full_provider_paths(provider: Provider | None, options: Mapping[str, Any], full_path: Full) -> dict[str, Any]:
    """Return provider options with their paths in full."""
    return with_named_files(provider, options, lambda _kind, path: full_path(path))


@cache
def _kinds(part: str) -> dict[tuple[str, ...], str]:
    definitions = load_schema("deployment")["$defs"]
    own, config = definitions[part]["properties"], definitions[f"{part}Config"]["properties"]
    return {
        **{(name,): facts["x-path"] for name, facts in own.items() if "x-path" in facts},
        **{("config", name): facts["x-path"] for name, facts in config.items() if "x-path" in facts},
    }


def _value(options: Mapping[str, Any], at: tuple[str, ...]) -> str | None:
    value: str | None = options.get("config", {}).get(at[1]) if len(at) > 1 else options.get(at[0])
    return value
