"""The names of a model's classes: in its metadata, in config.json or in a file of lines beside it."""

import ast
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ortdeploy.starters.subject import Subject

_FILES = ("labels.txt", "classes.txt", "class_names.txt", "imagenet_classes.txt", "synset.txt", "names.txt")
_KEYS = ("names", "labels", "classes", "class_names", "id2label")


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """The path of a file with a label a line, what init writes for it, and where they are from."""

    path: str
    told: str
    files: Mapping[str, bytes] = field(default_factory=dict)


def find_labels(subject: Subject, classes: int) -> Labels | None:
    """Return the labels of so many classes."""
    beside = subject.beside(*_FILES)
    if beside is not None and len(_lines(subject.folder / beside)) >= classes:
        return Labels(path=beside, told=f"the lines of {beside}")
    for told, names in _named(subject):
        if len(names) == classes:
            path = f"{subject.stem}-labels.txt"
            lines = "".join(f"{' '.join(str(name).split())}\n" for name in names)
            return Labels(path=path, told=told, files={path: lines.encode()})
    return None


def _named(subject: Subject) -> Iterator[tuple[str, list[Any]]]:
    """Yield names that the model or config.json has, each with where they are from."""
    for key in _KEYS:
        names = parsed_names(subject.facts.metadata.get(key, ""))
        if names:
            yield f"{key} in the model's metadata", names
    beside = subject.beside("config.json")
    if beside is not None:
        try:
            found = json.loads((subject.folder / beside).read_text(encoding="utf-8")).get("id2label")
        except (OSError, ValueError, AttributeError):
            return
        if isinstance(found, dict):
            yield f"id2label in {beside}", _in_order(found)


def parsed_names(text: str) -> list[Any]:
    """Return names that are written as JSON, as Python writes lists and mappings by number, or as lines."""
    if not text:
        return []
    for parse in (json.loads, ast.literal_eval):
        try:
            found = parse(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(found, dict):
            return _in_order(found)
        if isinstance(found, list):
            return found
    return text.splitlines() if "\n" in text else []


def _in_order(names: dict[Any, Any]) -> list[Any]:
    """Return the values of a mapping by number; nothing where a number is missing."""
    by_number = {str(key): value for key, value in names.items()}
    return [by_number[str(place)] for place in range(len(names)) if str(place) in by_number]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []
