"""What steps read of a model's metadata: letters, the names of classes, anchors."""

import ast
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from ortdeploy.diagnostics import did_you_mean
from ortdeploy.facts.models import ModelFacts
from ortdeploy.files.text_lines import lines_of
from ortdeploy.operations.catalogue import OPERATIONS


class MetadataError(Exception):
    """A model does not have what a step reads of it: the setting that names it, and why, in full sentences."""

    def __init__(self, setting: str, detail: str) -> None:
        super().__init__(detail)
        self.setting = setting
        self.detail = detail


def parsed_names(text: str) -> list[Any]:
    """Return names that are written as JSON, as Python writes lists and mappings by number, or as lines.

    Numbers that are not those from 0 on name none: each name would be that of another class.
    """
    found = _parsed(text)
    if isinstance(found, dict):
        by_number = {str(key): value for key, value in found.items()}
        numbers = list(map(str, range(len(by_number))))
        return [by_number[number] for number in numbers] if by_number.keys() == set(numbers) else []
    if isinstance(found, list):
        return found
    return list(lines_of(text)) if "\n" in text else []


def _parsed(text: str) -> Any:
    """Return what a text is as JSON, or as Python writes it; None if it is neither."""
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
    return None


def _names(text: str) -> list[str]:
    return [str(name) for name in parsed_names(text)]


def _numbers(text: str) -> list[float]:
    """Return the numbers of lists within lists, in their order; none if there is anything else."""
    flat: list[Any] = [_parsed(text)]
    while any(isinstance(one, list | tuple) for one in flat):
        flat = [item for one in flat for item in (one if isinstance(one, list | tuple) else [one])]
    are_numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in flat)
    return flat if are_numbers else []


class _Reading(Struct, frozen=True):
    """The setting that what is read becomes, what it is called, and how to read it."""

    becomes: str
    called: str
    parse: Callable[[str], Sequence[Any]]


_READINGS = {
    "ctc_greedy": _Reading("lines", "letters", lines_of),
    "labels": _Reading("lines", "names of all classes from 0 on", _names),
    "yolo_heads": _Reading("numbers", "anchors", _numbers),
}


def _usual_key(step: str) -> str:
    """Return the key of the metadata that a step takes if the manifest names none."""
    attributes = OPERATIONS[step].contract.attributes
    return next(str(one.default) for one in attributes if one.name == "metadata")


def settings_of_metadata(
    step: str, options: Mapping[str, Any], models: Mapping[str, ModelFacts], of: str
) -> dict[str, Any]:
    """Return the settings of a step that a model's metadata has; {} if it names none. Raises MetadataError.

    `of` is what has the models, in a message.
    """
    reading = _READINGS.get(step)
    if reading is None or "model" not in options:
        return {}
    name, key = options["model"], options.get("metadata") or _usual_key(step)
    if name not in models:
        raise MetadataError("model", f'{of} runs no model "{name}". {did_you_mean(name, models)}')
    written = models[name].metadata
    if models[name].problem is not None:
        return {reading.becomes: []}
    if key not in written:
        setting = "metadata" if "metadata" in options else "model"
        raise MetadataError(setting, f'Model "{name}" has no "{key}" in its metadata. {did_you_mean(key, written)}')
    found = list(reading.parse(written[key]))
    if not found:
        raise MetadataError("model", f'"{key}" in the metadata of model "{name}" has no {reading.called}.')
    return {reading.becomes: found}
