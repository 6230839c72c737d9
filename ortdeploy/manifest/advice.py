"""What to write instead of what a schema does not allow, where the schema alone would lead nowhere or astray."""

from collections.abc import Iterable, Mapping
from typing import Any

from ortdeploy.diagnostics import did_you_mean, nearest
from ortdeploy.manifest.document import Path
from ortdeploy.manifest.pipelines import DIFFUSION, KNOWN_COMPONENTS
from ortdeploy.manifest.write import flow
from ortdeploy.providers.catalogue import find_provider
from ortdeploy.providers.options import options_schema

_OTHER_CHOICES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "long": "int64",
    "byte": "uint8",
    "fp16": "float16",
    "fp32": "float32",
    "fp64": "float64",
    "bf16": "bfloat16",
    "ort_disable_all": "disable",
}
"""What element types are called in ONNX and PyTorch (ONNX Runtime writes tensor(float)), and an optimization level."""
_OTHER_KEYS = {
    "backend": "providers",
    "dataset": "input",
    "device": "providers",
    "do_sample": "temperature",
    "ep": "providers",
    "file": "path",
    "max_length": "max_new_tokens",
    "max_tokens": "max_new_tokens",
    "preprocess": "prepare",
    "preprocessing": "prepare",
    "sess_options": "session",
    "session_options": "session",
    "stop_sequences": "stop",
    "stop_strings": "stop",
    "system_prompt": "system",
    "transforms": "prepare",
}
"""What other tools call a key; each counts where the key is one."""
_OTHER_STEPS = {"astype": "cast", "divide": "scale", "permute": "layout", "rescale": "scale", "transpose": "layout"}
"""What other tools call a prepare step."""


def on_key(key: str, at: Path, around: Mapping[str, Any]) -> str | None:
    """Return where a key belongs that is no key of the mapping `around` at a place of a manifest; None if unknown."""
    if key == "provider_options":
        return "Options stand beside their provider: providers: [{provider: …, options: {…}}]."
    return _on_component(key, at) or _on_option(key, around)


def meant_key(key: str, known: Iterable[str]) -> str:
    """Say which of the known keys or steps somebody meant by another name, or which there are."""
    names = tuple(known)
    meant = next((other[key] for other in (_OTHER_KEYS, _OTHER_STEPS) if other.get(key) in names), None)
    return did_you_mean(meant or key, names)


def on_size(number: Any, at: Path) -> str:
    """Say what stands for any size, if a number of a shape at a place of a manifest is -1; else nothing."""
    return ". Any size is a name, such as batch, or null" if number == -1 and "shape" in at else ""


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
    """Say how a provider is written with its options; `in_list`: as a list.

    Its name may be a mapping's only key, or stand before them in a list, as ONNX Runtime has it.
    """
    if isinstance(value, list) and len(value) == 2 and isinstance(value[1], dict):  # noqa: PLR2004  a pair
        name, options = value
    elif isinstance(value, dict) and len(value) == 1:
        ((name, options),) = value.items()
    else:
        return None
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
    bare = written.casefold().removeprefix("tensor(").removesuffix(")").removeprefix("ort_enable_")
    choice = _OTHER_CHOICES.get(bare, bare)
    return choice if choice in known else nearest(written, known)
