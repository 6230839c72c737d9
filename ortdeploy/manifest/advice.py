"""What to write instead of what a schema does not allow, where the schema alone would lead nowhere or astray."""

from collections.abc import Iterable, Mapping
from typing import Any

from ortdeploy.diagnostics import nearest
from ortdeploy.manifest.document import Path
from ortdeploy.manifest.pipelines import DIFFUSION, KNOWN_COMPONENTS
from ortdeploy.manifest.write import flow
from ortdeploy.providers.catalogue import find_provider
from ortdeploy.providers.options import options_schema

_OTHER_DTYPES = {"float": "float32", "double": "float64", "half": "float16", "long": "int64", "byte": "uint8"}
"""What element types are called in ONNX and PyTorch; ONNX Runtime writes tensor(float)."""


def on_key(key: str, at: Path, around: Mapping[str, Any]) -> str | None:
    """Return where a key belongs that is no key of the mapping `around` at a place of a manifest; None if unknown."""
    return _on_component(key, at) or _on_option(key, around)


def _on_component(key: str, at: Path) -> str | None:
    """Say where settings of a single component of a preset go, when they are keyed by its name elsewhere."""
    if key not in KNOWN_COMPONENTS[DIFFUSION]:
        return None
    name = at[1] if at and at[0] == "pipelines" else "PIPELINE"
    return (
        f"Settings of one component of a preset go under pipelines: {{{name}: {{components: {{{key}: "
        "{providers: [{provider: …, options: {…}}]}}}}."
    )


def _on_option(key: str, entry: Mapping[str, Any]) -> str | None:
    """Say where an option of a provider goes that stands beside its name."""
    name = entry.get("provider")
    provider = find_provider(name) if isinstance(name, str) else None
    if provider is None or key not in options_schema(provider)["properties"]:
        return None
    return f"It is an option of {provider.short}. Write {{provider: {name}, options: {{{key}: …}}}}."


def on_provider_as_key(value: Any, *, in_list: bool) -> str | None:
    """Say how a provider is written with its options, if its name is a mapping's only key; `in_list`: as a list."""
    if not (isinstance(value, dict) and len(value) == 1):
        return None
    ((name, options),) = value.items()
    if not isinstance(name, str) or find_provider(name) is None:
        return None
    keys = ", ".join(f"{key}: …" for key in options) if isinstance(options, dict) and options else "…"
    entry = f"{{provider: {name}, options: {{{keys}}}}}"
    return f"Write {f'[{entry}]' if in_list else entry}."


def on_step_as_text(text: Any, steps: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Say how a step is written, if a text is the name of one; `steps` are the schemas of all by their names."""
    if not isinstance(text, str) or text not in steps:
        return None
    schema = steps[text]
    entries = (f"{key}: {_example(schema['properties'][key])}" for key in schema["required"])
    return f"Write {{{', '.join(entries)}}}."


def _example(schema: Mapping[str, Any]) -> str:
    examples = [schema["const"]] if "const" in schema else schema.get("examples", ())
    return flow(examples[0]) if examples else "…"


def meant_choice(written: str, choices: Iterable[str]) -> str | None:
    """Return the allowed choice that somebody meant by another text; None if none is like it."""
    known = tuple(choices)
    bare = written.casefold().removeprefix("tensor(").removesuffix(")")
    dtype = _OTHER_DTYPES.get(bare, bare)
    return dtype if dtype in known else nearest(written, known)
