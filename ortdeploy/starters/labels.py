"""The names of a model's classes: in its metadata, in config.json or in a file of lines beside it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from ortdeploy.deployment.metadata import parsed_names
from ortdeploy.files.text_lines import lines_of
from ortdeploy.manifest.write import scalar
from ortdeploy.starters.model_info import Subject
from ortdeploy.starters.provenance import Given, Origin

_FILES = ("labels.txt", "classes.txt", "class_names.txt", "imagenet_classes.txt", "synset.txt", "names.txt")
_KEYS = ("names", "labels", "classes", "class_names", "id2label", "character")
"""In the metadata; `character` is PaddleX's, for classes as for letters."""


class Labels(Struct, frozen=True, kw_only=True):
    """The path of a file with a label a line, what init writes for it, and where they are from."""

    path: str
    told: str
    origin: Origin
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def written(self) -> Given:
        """The path as steps name it."""
        return Given(name="labels", text=scalar(self.path), origin=self.origin)

    def names(self, subject: Subject) -> tuple[str, ...]:
        """Return the labels themselves."""
        if self.path in self.files:
            return lines_of(self.files[self.path].decode())
        return subject.lines(self.path)


def find_labels(subject: Subject, classes: int) -> Labels | None:
    """Return labels for this number of classes."""
    beside = subject.beside(*_FILES)
    if beside is not None and _count(subject.lines(beside)) == classes:
        return Labels(path=beside, told=f"the lines of {beside}", origin=Origin.FILE)
    for told, origin, names in _named(subject):
        content = label_lines(names)
        if len(names) == classes and content is not None:
            path = f"{subject.stem}-labels.txt"
            return Labels(path=path, told=told, origin=origin, files={path: content})
    return None


def named(labels: Labels | None, index: str, label: str) -> list[str]:
    """Return the step of a pipeline that names the classes of `index`; none without labels."""
    return [f"{{do: labels, in: {{x: ${index}, from: {labels.written}}}, out: {label}}}"] if labels else []


def label_lines(names: Sequence[Any]) -> bytes | None:
    """Return a file with a name a line; None if a name has half of a surrogate pair, which is no text."""
    try:
        return "".join(f"{' '.join(str(name).split())}\n" for name in names).encode()
    except UnicodeEncodeError:
        return None


def _named(subject: Subject) -> Iterator[tuple[str, Origin, list[Any]]]:
    """Yield names that the model or config.json has, each with where they are from."""
    for key in _KEYS:
        names = parsed_names(subject.facts.metadata.get(key, ""))
        if names:
            yield f"{key} in the model's metadata", Origin.METADATA, names
    found = subject.settings("config.json").get("id2label")
    if isinstance(found, dict):
        told = f"id2label in {subject.beside('config.json')}"
        yield told, Origin.FILE, parsed_names(json.dumps(found))
    listed = subject.settings("config.json").get("label_names")
    if isinstance(listed, list):
        yield f"label_names in {subject.beside('config.json')}", Origin.FILE, listed


def _count(lines: Sequence[str]) -> int:
    """Return how many lines there are, without empty ones at the end."""
    return max((number for number, line in enumerate(lines, 1) if line.strip()), default=0)
