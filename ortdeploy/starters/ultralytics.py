"""Exports of ultralytics, which write names, stride and task into the model's metadata."""

import re
from collections.abc import Iterator

from ortdeploy.deployment.metadata import parsed_names
from ortdeploy.manifest.write import scalar
from ortdeploy.starters import writing
from ortdeploy.starters.labels import Labels, find_labels
from ortdeploy.starters.pictures import SCALE, PictureInput, picture_input, sample_pictures
from ortdeploy.starters.subject import Starter, Subject

_VERSION = re.compile(r"YOLO\s*v?(\d+)", re.IGNORECASE)
_DECIDED = ("v10", "v26")
_OF_BOX = ("v5", "v6", "v7")
_DECIDED_VALUES, _MOST_DECIDED = 6, 300
"""Corners, score and class of a box that is decided, and how many of those an export gives."""

_KNOWN = ("v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v26")
_BATCH = 8
_LARGEST = 8192
"""The largest side that the metadata may name: samples of it are made."""

_TASKS = ("detect", "segment", "pose")
_RANK = 3


def recognise(subject: Subject) -> Iterator[Starter]:
    """Yield a manifest from pictures to boxes with labels; classifiers are another family's."""
    written = subject.facts.metadata
    picture = picture_input(subject)
    output = next((name for name, shape in subject.ran.outputs.items() if len(shape) == _RANK), None)
    if picture is None or output is None or not {"names", "stride", "task"}.issubset(written):
        return
    if written["task"] in _TASKS:
        yield _starter(subject, picture, output)


def _starter(subject: Subject, picture: PictureInput, output: str) -> Starter:
    written = subject.facts.metadata
    classes = len(parsed_names(written["names"]))
    labels = find_labels(subject, classes)
    version = _version(subject, output, classes)
    size = _size(subject, picture)
    head = [*_before(subject, picture, output, size), *_decoded(version, classes)]
    lines = [*head, *_after(labels)]
    result = {"boxes": "$there", "scores": "$sure", "classes": "$classes"} | ({"labels": "$labels"} if labels else {})
    more = "" if written["task"] == "detect" else f" Of the task {written['task']}, the boxes are given."
    text = (
        writing.head(
            f"An ultralytics export, by its metadata: task {written['task']}, {classes} names, imgsz "
            f"{written.get('imgsz', 'not given')}.{more}",
            f"The head is read as that of YOLO {version}.",
        )
        + writing.models(subject)
        + writing.picture_pipeline(subject, "find", lines, result, f"{picture.batch or _BATCH}}}")
    )
    files = sample_pictures(subject, *size) | dict(labels.files if labels else {})
    return Starter(family=f"an ultralytics export ({written['task']}, YOLO {version})", text=text, files=files)


def _before(subject: Subject, picture: PictureInput, output: str, size: tuple[int, int]) -> Iterator[str]:
    """Yield the steps from the picture to what the model gives."""
    box = f"[{size[0]}, {size[1]}]"
    yield f"{{do: letterbox, in: {{image: $image, size: {box}, sampling: opencv}}, out: [fitted, how]}}"
    if picture.floating:
        yield f"{{do: scale, in: {{x: $fitted, {SCALE[1:-1]}}}, out: scaled}}"
    yield f"{{do: layout, in: {{x: ${'scaled' if picture.floating else 'fitted'}, layout: NCHW}}, out: planes}}"
    yield f"{{run: {scalar(subject.name)}, in: {{{scalar(picture.name)}: $planes}}, out: {{{scalar(output)}: raw}}}}"


def _decoded(version: str, classes: int) -> Iterator[str]:
    """Yield the steps from what the model gives to boxes that do not overlap."""
    if version in _DECIDED:
        yield f"{{do: yolo_decode, in: {{x: $raw, version: {version}, score: 0.25}}, out: [kept, sure, classes]}}"
        return
    yield f"{{do: yolo_decode, in: {{x: $raw, version: {version}, classes: {classes}}}, out: [boxes, scores]}}"
    suppressed = "{boxes: $boxes, scores: $scores, score: 0.25, iou: 0.7, labels: best}"
    yield f"{{do: nms, in: {suppressed}, out: [kept, sure, classes]}}"


def _after(labels: Labels | None) -> Iterator[str]:
    """Yield the steps to boxes in the picture, and to their labels."""
    yield "{do: unletterbox, in: {boxes: $kept, how: $how}, out: there}"
    if labels is not None:
        yield f"{{do: labels, in: {{x: $classes, from: {scalar(labels.path)}}}, out: labels}}"


def _version(subject: Subject, output: str, classes: int) -> str:
    """Return the version of the head: as the description says, if that goes with the shape of the output."""
    told = _VERSION.search(subject.facts.metadata.get("description", ""))
    named = f"v{told[1]}" if told else ""
    _, second, third = subject.shape_of(output)
    with_objectness = third == classes + 5 and second > _MOST_DECIDED
    if third == _DECIDED_VALUES and second != classes + 4 and not with_objectness:
        return named if named in _DECIDED else "v10"
    if with_objectness:
        return named if named in _OF_BOX else "v5"
    return named if named in _KNOWN and named not in {*_OF_BOX, *_DECIDED} else "v8"


def _size(subject: Subject, picture: PictureInput) -> tuple[int, int]:
    """Return the height and width that the network takes: of the graph, or as the metadata say."""
    written = parsed_names(subject.facts.metadata.get("imgsz", ""))
    if picture.open and len(written) == 2 and all(type(one) is int and 0 < one <= _LARGEST for one in written):  # noqa: PLR2004
        return written[0], written[1]
    return picture.height, picture.width
