"""Exports of ultralytics, which write names, stride and task into the model's metadata."""

import math
import re
from collections.abc import Iterator

from msgspec import Struct

from ortdeploy.deployment.metadata import parsed_names
from ortdeploy.manifest.write import flow, scalar
from ortdeploy.starters import provenance, yaml_text
from ortdeploy.starters.labels import find_labels, named
from ortdeploy.starters.model_info import Starter, Subject
from ortdeploy.starters.pictures import PER_255, PictureInput, coloured, picture_input, sample_pictures
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

_TASKS = ("detect", "segment", "pose", "obb")
"""The tasks whose boxes are found; classifiers are another family's."""

_RANK, _RANK_OF_MASKS = 3, 4


def is_ultralytics(subject: Subject) -> bool:
    """Return whether ultralytics has exported the model, as its metadata say."""
    return {"names", "stride", "task"}.issubset(subject.facts.metadata)


def finds_boxes(subject: Subject) -> bool:
    """Return whether it is an export of a task whose boxes are found: no recipe of classifiers fits it."""
    return is_ultralytics(subject) and subject.facts.metadata["task"] in _TASKS


def recognise(subject: Subject) -> Iterator[Starter]:
    """Yield a manifest from pictures to boxes with labels, and to points, outlines of masks or corners."""
    picture = picture_input(subject)
    output = next((name for name, shape in subject.ran.outputs.items() if len(shape) == _RANK), None)
    if picture is not None and output is not None and finds_boxes(subject):
        yield _starter(subject, picture, output)


def _starter(subject: Subject, picture: PictureInput, output: str) -> Starter:
    written = subject.facts.metadata
    classes = len(parsed_names(written["names"]))
    labels = find_labels(subject, classes)
    version = _version(subject, output, classes)
    size = _size(subject, picture)
    behind = _behind(subject)
    lines = [
        *_before(subject, picture, output, size, behind),
        *_decoded(version, classes, behind),
        *behind.steps,
        *named(labels, "classes", "labels"),
    ]
    result = {**behind.result, "scores": "$sure", "classes": "$classes"} | ({"labels": "$labels"} if labels else {})
    text = (
        yaml_text.head(*_intro(subject, classes), f"The head is read as that of YOLO {version}.")
        + yaml_text.models(subject)
        + yaml_text.pipeline("find", lines, result)
        + yaml_text.picture_job(subject, yaml_text.batch(picture.batch, _BATCH))
    )
    family = f"an ultralytics export ({written['task']}, YOLO {version})"
    return Starter(family=family, page=Page(marked=text), files=sample_pictures(subject, *size.sides, labels))


def _intro(subject: Subject, classes: int) -> list[str]:
    written = subject.facts.metadata
    imgsz = written.get("imgsz", "not given")
    return [f"An ultralytics export, by its metadata: task {written['task']}, {classes} names, imgsz {imgsz}."]


class _Behind(Struct, frozen=True, kw_only=True):
    """What a task gives beside classes: settings of yolo_decode, the name of what each box carries, and what is left.

    `masks` is the output that masks share, `numbers` how many numbers stand behind the scores of a box.
    """

    steps: tuple[str, ...]
    result: dict[str, str]
    setting: str = ""
    carried: str | None = None
    masks: str | None = None
    numbers: int = 0


_THERE = "{do: unletterbox, in: {boxes: $kept, how: $how}, out: there}"


def _behind(subject: Subject) -> _Behind:
    """Return what is made of the boxes of a task."""
    task = subject.facts.metadata["task"]
    points = parsed_names(subject.facts.metadata.get("kpt_shape", ""))
    masks = next((name for name, one in subject.ran.outputs.items() if len(one) == _RANK_OF_MASKS), None)
    if task == "pose" and len(points) == 2 and all(type(one) is int for one in points):  # noqa: PLR2004
        return _Behind(
            steps=(_THERE, "{do: unletterbox, in: {boxes: $theirs, how: $how}, out: keypoints}"),
            result={"boxes": "$there", "keypoints": "$keypoints"},
            setting=f", points: {provenance.metadata('points', flow(points))}",
            carried="points",
            numbers=math.prod(points),
        )
    if task == "segment" and masks is not None:
        tolerance = provenance.choice("outlines to a pixel", 1)
        return _Behind(
            steps=(
                _THERE,
                "{do: masks, in: {factors: $theirs, protos: $protos, boxes: $there, how: $how}, out: masks}",
                f"{{do: polygons, in: {{masks: $masks, tolerance: {tolerance}}}, out: outlines}}",
            ),
            result={"boxes": "$there", "outlines": "$outlines"},
            carried="factors",
            masks=masks,
            numbers=subject.ran_shape(masks)[1],
        )
    if task == "obb":
        keep = provenance.convention("corners beside the picture", "keep", _OF)
        return _Behind(
            steps=(
                "{do: corners, in: {boxes: $kept}, out: turned}",
                f"{{do: unletterbox, in: {{boxes: $turned, how: $how, outside: {keep}}}, out: there}}",
            ),
            result={"corners": "$there"},
            setting=f", task: {provenance.metadata('task', 'obb')}",
            numbers=1,
        )
    return _Behind(steps=(_THERE,), result={"boxes": "$there"})


class _Size(Struct, frozen=True, kw_only=True):
    """The height and width that the network takes, and what tells them."""

    sides: tuple[int, int]
    origin: Origin

    @property
    def written(self) -> Given:
        """The size as steps name it."""
        because = "the graph takes others too, and imgsz says none" if self.origin is Origin.CONVENTION else ""
        return Given(name="size", text=flow(list(self.sides)), origin=self.origin, because=because)


def _before(subject: Subject, picture: PictureInput, output: str, size: _Size, behind: _Behind) -> Iterator[str]:
    """Yield the steps from the picture to what the model gives."""
    sampling = provenance.convention("sampling", "opencv", _OF)
    yield coloured(picture, "rgb", _OF)
    yield f"{{do: letterbox, in: {{image: $colors, size: {size.written}, sampling: {sampling}}}, out: [fitted, how]}}"
    if picture.floating:
        yield f"{{do: scale, in: {{x: $fitted, scale: {provenance.convention('scale', PER_255, _OF)}}}, out: scaled}}"
    layout = provenance.graph("layout", "NCHW")
    yield f"{{do: layout, in: {{x: ${'scaled' if picture.floating else 'fitted'}, layout: {layout}}}, out: planes}}"
    masks = f", {scalar(behind.masks)}: protos" if behind.masks else ""
    fed = f"{{{scalar(picture.name)}: $planes}}"
    yield f"{{run: {scalar(subject.name)}, in: {fed}, out: {{{scalar(output)}: raw{masks}}}}}"


def _decoded(version: str, classes: int, behind: _Behind) -> Iterator[str]:
    """Yield the steps from what the model gives to boxes that do not overlap."""
    of = provenance.metadata("version", version)
    least = provenance.convention("score 0.25", "0.25", _OF)
    if version in _DECIDED:
        theirs = ", theirs" if behind.carried else ""
        yield (
            f"{{do: yolo_decode, in: {{x: $raw, version: {of}, score: {least}{behind.setting}}}, "
            f"out: [kept, sure, classes{theirs}]}}"
        )
        return
    number = provenance.metadata("classes", classes)
    best, carried = (f", best, {behind.carried}", f", more: ${behind.carried}") if behind.carried else ("", "")
    yield (
        f"{{do: yolo_decode, in: {{x: $raw, version: {of}, classes: {number}{behind.setting}}}, "
        f"out: [boxes, scores{best}]}}"
    )
    overlap, labels = provenance.convention("iou 0.7", "0.7", _OF), provenance.convention("labels best", "best", _OF)
    suppressed = f"{{boxes: $boxes, scores: $scores{carried}, score: {least}, iou: {overlap}, labels: {labels}}}"
    yield f"{{do: nms, in: {suppressed}, out: [kept, sure, classes{', places, theirs' if carried else ''}]}}"


def _version(subject: Subject, output: str, classes: int) -> str:
    """Return the version of the head: as the description says, if that goes with the shape of the output."""
    told = _VERSION.search(subject.facts.metadata.get("description", ""))
    named = f"v{told[1]}" if told else ""
    _, second, third = subject.ran_shape(output)
    further = _behind(subject).numbers
    with_objectness = third - classes - 5 in {0, further} and second > _MOST_DECIDED
    plain = second in {classes + 4, classes + 4 + further}
    if third in {_DECIDED_VALUES, _DECIDED_VALUES + further} and not plain and not with_objectness:
        return named if named in _DECIDED else "v10"
    if with_objectness:
        return named if named in _OF_BOX else "v5"
    return named if named in _KNOWN and named not in {*_OF_BOX, *_DECIDED} else "v8"


def _size(subject: Subject, picture: PictureInput) -> _Size:
    """Return the height and width that the network takes: of the graph, or as the metadata say."""
    written = parsed_names(subject.facts.metadata.get("imgsz", ""))
    if not picture.open:
        return _Size(sides=(picture.height, picture.width), origin=Origin.GRAPH)
    if len(written) == 2 and all(type(one) is int and 0 < one <= _LARGEST for one in written):  # noqa: PLR2004
        return _Size(sides=(written[0], written[1]), origin=Origin.METADATA)
    return _Size(sides=(picture.height, picture.width), origin=Origin.CONVENTION)
