"""Exports of ultralytics, which write names, stride and task into the model's metadata."""

import math
import re
from collections.abc import Iterator

from msgspec import Struct

from ortdeploy.deployment.metadata import parsed_names
from ortdeploy.manifest.write import flow, scalar
from ortdeploy.starters import provenance, yaml_text
from ortdeploy.starters.labels import Labels, find_labels
from ortdeploy.starters.model_info import Starter, Subject
from ortdeploy.starters.pictures import PER_255, PictureInput, picture_input, sample_pictures
from ortdeploy.starters.provenance import Given, Origin, Page

_VERSION = re.compile(r"YOLO\s*v?(\d+)", re.IGNORECASE)
_DECIDED = ("v10", "v26")
_OF_BOX = ("v5", "v6", "v7")
_DECIDED_VALUES, _MOST_DECIDED = 6, 300
"""Corners, score and class of a box that is decided, and how many of those an export gives."""

_KNOWN = ("v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v26")
_BATCH = 8
_OF = "ultralytics' own"
_LARGEST = 8192
"""The largest side that the metadata may name: samples of it are made."""

_LEFT_OUT = {"detect": "", "segment": "masks", "pose": "keypoints"}
"""What each task gives beside boxes, which the manifest leaves out."""

_TURNED = "obb"
_RANK, _RANK_OF_MASKS = 3, 4


def is_ultralytics(subject: Subject) -> bool:
    """Return whether ultralytics has exported the model, as its metadata say."""
    return {"names", "stride", "task"}.issubset(subject.facts.metadata)


def recognise(subject: Subject) -> Iterator[Starter]:
    """Yield a manifest from pictures to boxes with labels; classifiers are another family's."""
    picture = picture_input(subject)
    output = next((name for name, shape in subject.ran.outputs.items() if len(shape) == _RANK), None)
    if picture is None or output is None or not is_ultralytics(subject):
        return
    task = subject.facts.metadata["task"]
    if task in _LEFT_OUT:
        yield _starter(subject, picture, output)
    elif task == _TURNED:
        yield _as_it_is(subject, picture, output)


def _starter(subject: Subject, picture: PictureInput, output: str) -> Starter:
    written = subject.facts.metadata
    classes = len(parsed_names(written["names"]))
    labels = find_labels(subject, classes)
    version = _version(subject, output, classes)
    size = _size(subject, picture)
    head = [*_before(subject, picture, output, size), *_decoded(version, classes)]
    lines = [*head, *_after(labels)]
    result = {"boxes": "$there", "scores": "$sure", "classes": "$classes"} | ({"labels": "$labels"} if labels else {})
    more = _LEFT_OUT[written["task"]]
    text = (
        yaml_text.head(*_intro(subject, classes), f"The head is read as that of YOLO {version}.")
        + yaml_text.models(subject)
        + yaml_text.pipeline("find", lines, result, note=f"left out: {more}" if more else "")
        + yaml_text.picture_job(subject, "find", yaml_text.batch(picture.batch, _BATCH))
    )
    files = sample_pictures(subject, *size.sides) | dict(labels.files if labels else {})
    return Starter(
        family=f"an ultralytics export ({written['task']}, YOLO {version})",
        page=Page(marked=text),
        files=files,
        question=f"The boxes of task {written['task']} are given, and its {more} are left out" if more else None,
    )


def _intro(subject: Subject, classes: int) -> list[str]:
    written = subject.facts.metadata
    imgsz = written.get("imgsz", "not given")
    return [f"An ultralytics export, by its metadata: task {written['task']}, {classes} names, imgsz {imgsz}."]


def _as_it_is(subject: Subject, picture: PictureInput, output: str) -> Starter:
    """Return a manifest that gives turned boxes as the network does: no step reads their angle."""
    size = _size(subject, picture)
    text = (
        yaml_text.head(*_intro(subject, len(parsed_names(subject.facts.metadata["names"]))))
        + yaml_text.models(subject)
        + yaml_text.pipeline(
            "find",
            [*_before(subject, picture, output, size)],
            {"raw": "$raw", "how": "$how"},
            note="raw has center, size, scores and angle of each box in the network's picture; no step reads angles",
        )
        + yaml_text.picture_job(subject, "find", yaml_text.batch(picture.batch, _BATCH))
    )
    return Starter(
        family=f"an ultralytics export ({_TURNED})",
        page=Page(marked=text),
        files=sample_pictures(subject, *size.sides),
        unsaid="turned boxes (task obb): no step reads their angle, so raw is what the network gives",
    )


class _Size(Struct, frozen=True, kw_only=True):
    """The height and width that the network takes, and what tells them."""

    sides: tuple[int, int]
    origin: Origin

    @property
    def written(self) -> Given:
        """The size as steps name it."""
        because = "the graph takes others too, and imgsz says none" if self.origin is Origin.CONVENTION else ""
        return Given(name="size", text=flow(list(self.sides)), origin=self.origin, because=because)


def _before(subject: Subject, picture: PictureInput, output: str, size: _Size) -> Iterator[str]:
    """Yield the steps from the picture to what the model gives."""
    sampling = provenance.convention("sampling", "opencv", _OF)
    yield f"{{do: letterbox, in: {{image: $image, size: {size.written}, sampling: {sampling}}}, out: [fitted, how]}}"
    if picture.floating:
        yield f"{{do: scale, in: {{x: $fitted, scale: {provenance.convention('scale', PER_255, _OF)}}}, out: scaled}}"
    layout = provenance.graph("layout", "NCHW")
    yield f"{{do: layout, in: {{x: ${'scaled' if picture.floating else 'fitted'}, layout: {layout}}}, out: planes}}"
    yield f"{{run: {scalar(subject.name)}, in: {{{scalar(picture.name)}: $planes}}, out: {{{scalar(output)}: raw}}}}"


def _decoded(version: str, classes: int) -> Iterator[str]:
    """Yield the steps from what the model gives to boxes that do not overlap."""
    of = provenance.metadata("version", version)
    least = provenance.convention("score 0.25", "0.25", _OF)
    if version in _DECIDED:
        yield f"{{do: yolo_decode, in: {{x: $raw, version: {of}, score: {least}}}, out: [kept, sure, classes]}}"
        return
    number = provenance.metadata("classes", classes)
    yield f"{{do: yolo_decode, in: {{x: $raw, version: {of}, classes: {number}}}, out: [boxes, scores]}}"
    overlap, labels = provenance.convention("iou 0.7", "0.7", _OF), provenance.convention("labels best", "best", _OF)
    suppressed = f"{{boxes: $boxes, scores: $scores, score: {least}, iou: {overlap}, labels: {labels}}}"
    yield f"{{do: nms, in: {suppressed}, out: [kept, sure, classes]}}"


def _after(labels: Labels | None) -> Iterator[str]:
    """Yield the steps to boxes in the picture, and to their labels."""
    yield "{do: unletterbox, in: {boxes: $kept, how: $how}, out: there}"
    if labels is not None:
        yield f"{{do: labels, in: {{x: $classes, from: {labels.written}}}, out: labels}}"


def _version(subject: Subject, output: str, classes: int) -> str:
    """Return the version of the head: as the description says, if that goes with the shape of the output."""
    told = _VERSION.search(subject.facts.metadata.get("description", ""))
    named = f"v{told[1]}" if told else ""
    _, second, third = subject.ran_shape(output)
    further = _further(subject)
    with_objectness = third - classes - 5 in {0, further} and second > _MOST_DECIDED
    plain = second in {classes + 4, classes + 4 + further}
    if third in {_DECIDED_VALUES, _DECIDED_VALUES + further} and not plain and not with_objectness:
        return named if named in _DECIDED else "v10"
    if with_objectness:
        return named if named in _OF_BOX else "v5"
    return named if named in _KNOWN and named not in {*_OF_BOX, *_DECIDED} else "v8"


def _further(subject: Subject) -> int:
    """Return how many numbers a box has behind its scores: factors of masks, or the numbers of its points."""
    points = parsed_names(subject.facts.metadata.get("kpt_shape", ""))
    if subject.facts.metadata["task"] == "pose" and points and all(type(one) is int for one in points):
        return math.prod(points)
    masks = [shape[1] for shape in subject.ran.outputs.values() if len(shape) == _RANK_OF_MASKS]
    return masks[0] if masks and subject.facts.metadata["task"] == "segment" else 0


def _size(subject: Subject, picture: PictureInput) -> _Size:
    """Return the height and width that the network takes: of the graph, or as the metadata say."""
    written = parsed_names(subject.facts.metadata.get("imgsz", ""))
    if not picture.open:
        return _Size(sides=(picture.height, picture.width), origin=Origin.GRAPH)
    if len(written) == 2 and all(type(one) is int and 0 < one <= _LARGEST for one in written):  # noqa: PLR2004
        return _Size(sides=(written[0], written[1]), origin=Origin.METADATA)
    return _Size(sides=(picture.height, picture.width), origin=Origin.CONVENTION)
