"""Detectors whose graph ends in boxes: DETR and its relatives of transformers, and torchvision's.

DETR gives as many boxes as it has queries, with the scores of all classes; the last class is none. Its relatives that
take the sigmoid of each class have no such class; config.json names them. torchvision's detectors give the boxes,
labels and scores of one picture, already suppressed, and normalize the picture themselves.

Sources: post_process_object_detection of transformers' image processors, and torchvision.models.detection.
"""

import re
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from ortdeploy.manifest.write import scalar
from ortdeploy.starters import provenance, yaml_text
from ortdeploy.starters.classifier import keeps_proportions, prepared
from ortdeploy.starters.labels import Labels, find_labels, named
from ortdeploy.starters.model_info import Starter, Subject
from ortdeploy.starters.pictures import PER_255, PictureInput, picture_input, sample_path, sample_pictures, size_of
from ortdeploy.starters.provenance import Page

_BATCH = 4
_BY_SIGMOID = re.compile(r"RTDetr|DFine|Deformable|Conditional|DabDetr|GroundingDino")
_RANK, _CORNERS, _OF_ONE = 3, 4, 3
_SCORE = "0.5"
_OF = "DETR's"
_NOT_SUPPRESSED = f"iou: {provenance.convention('no suppression (iou 1)', 1)}"
"""Of such boxes none is dropped for its overlap; only the score decides."""


def recognise(subject: Subject) -> Iterator[Starter]:
    """Yield a manifest from pictures to boxes."""
    picture = picture_input(subject) or _picture_alone(subject)
    shapes = {name: subject.ran_shape(name) for name in subject.ran.outputs}
    if picture is None or picture.channels == 1 or not picture.floating:
        return
    queries = _queries(shapes)
    if queries is not None and picture.name == subject.inputs[0].name:
        yield _of_queries(subject, picture, *queries)
    of_one = _of_one(subject, shapes)
    if of_one is not None and picture.layout == "NCHW" and picture.batch == 1:
        yield _of_torchvision(subject, picture, of_one)


def _picture_alone(subject: Subject) -> PictureInput | None:
    """Return the input of a model that takes one picture [channels, height, width], without rows."""
    value = subject.only_input
    shape: tuple[Any, ...] = () if value is None else value.tensor.shape or ()
    fed = subject.ran.fed.get(value.name, ()) if value is not None else ()
    if value is None or len(shape) != _OF_ONE or shape[0] != 3 or len(fed) != _OF_ONE:  # noqa: PLR2004  colours
        return None
    if subject.data is not None and subject.data.format != "image":
        return None
    return PictureInput(
        name=value.name,
        layout="NCHW",
        channels=3,
        height=fed[1],
        width=fed[2],
        batch=1,
        open=not all(isinstance(size, int) for size in shape[1:]),
        floating=value.tensor.dtype == "float32",
    )


def _queries(shapes: dict[str, tuple[int, ...]]) -> tuple[str, str] | None:
    """Return the outputs with scores and boxes of each query, by the names that transformers gives them."""
    scores, boxes = shapes.get("logits", ()), shapes.get("pred_boxes", ())
    found = len(scores) == len(boxes) == _RANK and boxes[2] == _CORNERS and boxes[:2] == scores[:2]
    return ("logits", "pred_boxes") if found else None


def _of_queries(subject: Subject, picture: PictureInput, logits: str, boxes: str) -> Starter:
    count = subject.ran_shape(logits)[2]
    by_sigmoid = bool(_BY_SIGMOID.search(" ".join(subject.architectures)))
    labels = find_labels(subject, count if by_sigmoid else count - 1) or find_labels(subject, count)
    least = provenance.convention(f"score {_SCORE}", _SCORE, "transformers'")
    taken = f"{{{scalar(picture.name)}: $image}}"
    raw = "{do: boxes, in: {boxes: $raw, from: cxcywh, unit: normalised, to_unit: pixels, sizes: $sizes}, out: boxes}"
    lines = [
        f"{{run: {scalar(subject.name)}, in: {taken}, out: {{{logits}: logits, {boxes}: raw}}}}",
        *_scores(by_sigmoid=by_sigmoid),
        str(provenance.convention("boxes by center and size, from 0 to 1", raw, "DETR's")),
        f"{{do: nms, in: {{boxes: $boxes, scores: $scores, score: {least}, {_NOT_SUPPRESSED}, "
        f"max: {provenance.graph('max', subject.ran_shape(boxes)[1])}, "
        f"labels: {provenance.convention('labels', 'all' if by_sigmoid else 'best', _OF)}}}, "
        "out: [there, sure, classes]}",
    ]
    prepare, told = prepared(subject, picture)
    batch = 1 if keeps_proportions(subject.preprocessor("image_processor")[0], picture) else _BATCH
    kind = "a relative of DETR that takes a sigmoid of each class" if by_sigmoid else "DETR"
    intro = f"A detector like {kind}: {count} scores and a box for each of {subject.ran_shape(logits)[1]} queries."
    return _starter(
        subject, picture, _Told(intro, "a detector like DETR", told), [*lines], prepare, labels, batch=batch
    )


def _scores(*, by_sigmoid: bool) -> Iterator[str]:
    if by_sigmoid:
        yield "{do: sigmoid, in: {x: $logits}, out: scores}"
        return
    yield "{do: softmax, in: {x: $logits}, out: all}"
    scores = "{op: Slice, in: {data: $all, starts: [0], ends: [-1], axes: [2]}, out: scores}"
    yield str(provenance.convention("the last class is none", scores, "DETR's"))


def _of_one(subject: Subject, shapes: dict[str, tuple[int, ...]]) -> tuple[str, str, str] | None:
    """Return the outputs with boxes [n, 4], labels [n] and scores [n] of one picture."""
    kinds = {value.name: value.tensor.dtype for value in subject.facts.outputs}
    boxes = [name for name, shape in shapes.items() if len(shape) == 2 and shape[1] == _CORNERS]  # noqa: PLR2004
    flat = [name for name, shape in shapes.items() if len(shape) == 1]
    labels = [name for name in flat if kinds.get(name) == "int64"]
    scores = [name for name in flat if kinds.get(name) == "float32"]
    found = (boxes, labels, scores)
    return (boxes[0], labels[0], scores[0]) if all(len(one) == 1 for one in found) else None


def _of_torchvision(subject: Subject, picture: PictureInput, outputs: tuple[str, str, str]) -> Starter:
    boxes, labels, scores = map(scalar, outputs)
    least = provenance.convention(f"score {_SCORE}", _SCORE, "nothing in the files tells")
    has_rows = len(subject.ran.fed[picture.name]) > _OF_ONE
    lines = [_by_row("Unsqueeze", "{data: $image, axes: [0]}", "one")] if has_rows else []
    lines += [
        f"{{run: {scalar(subject.name)}, by_row: {provenance.graph('by_row', 'true')}, "
        f"in: {{{scalar(picture.name)}: ${'one' if has_rows else 'image'}}}, "
        f"out: {{{boxes}: {'boxes' if picture.open else 'found'}, {labels}: of, {scores}: scores}}}}"
    ]
    lines += [] if picture.open else _in_the_picture(picture)
    lines += [
        f"{{do: nms, in: {{boxes: $boxes, scores: $scores, more: $of, score: {least}, {_NOT_SUPPRESSED}}}, "
        "out: [there, sure, one_class, places, classes]}"
    ]
    prepare = [f"{{rgb: {provenance.convention('RGB', 'true', _TORCHVISION)}}}"]
    prepare += [] if picture.open else [f"{{resize: {size_of(picture)}}}"]
    prepare += [f"{{scale: {provenance.convention('scale', PER_255, _TORCHVISION)}}}"]
    prepare += [f"{{layout: {provenance.graph('layout', 'NCHW')}}}"]
    intro = "A detector like torchvision's: boxes, labels and scores of one picture, without what overlaps."
    told = _Told(intro, "a detector like torchvision's", "the graph normalizes")
    return _starter(subject, picture, told, lines, prepare, None, uses_sizes=not picture.open)


def _by_row(operator: str, taken: str, made: str) -> str:
    step = f"{{op: {operator}, by_row: true, in: {taken}, out: {made}}}"
    return str(provenance.graph("one picture a run", step))


def _in_the_picture(picture: PictureInput) -> list[str]:
    """Return the steps from boxes in the network's picture to boxes in the one that was read."""
    size = f"size: {size_of(picture)}"
    network = f"{{do: boxes, in: {{boxes: $found, from: xyxy, to_unit: normalised, {size}}}, out: shares}}"
    own = "{do: boxes, in: {boxes: $shares, from: xyxy, unit: normalised, to_unit: pixels, sizes: $sizes}, out: boxes}"
    return [str(provenance.convention("boxes by their corners", one, _TORCHVISION)) for one in (network, own)]


_TORCHVISION = "torchvision's"


class _Told(Struct, frozen=True):
    """What is said of a model in its manifest, what its family is called, and where the prepare steps are from."""

    intro: str
    family: str
    prepared: str


def _starter(
    subject: Subject,
    picture: PictureInput,
    told: _Told,
    lines: list[str],
    prepare: list[str],
    labels: Labels | None,
    *,
    uses_sizes: bool = True,
    batch: int = _BATCH,
) -> Starter:
    result = {"boxes": "$there", "scores": "$sure", "classes": "$classes"}
    if labels is not None:
        result["labels"] = "$labels"
    sizes = ", sizes: [height, width]" if uses_sizes else ""
    text = (
        yaml_text.head(told.intro)
        + yaml_text.models(subject)
        + yaml_text.pipeline("find", [*lines, *named(labels, "classes", "labels")], result)
        + yaml_text.input_section(subject, sample_path(subject), f"columns: {{image: pixels{sizes}}}", "key: [path]")
        + yaml_text.prepare("image", prepare, told.prepared)
        + yaml_text.batch(picture.batch, batch, "pictures differ in size" if batch == 1 else "")
        + yaml_text.output(subject)
    )
    files = sample_pictures(subject, picture.height, picture.width, labels)
    return Starter(family=told.family, page=Page(marked=text), files=files)
