"""Exports of YOLOX, which have no metadata, but as many boxes as the cells of three or four grids over the picture.

Sources: tools/export_onnx.py, demo/ONNXRuntime and yolox/utils/demo_utils.py of Megvii-BaseDetection/YOLOX.
"""

from collections.abc import Iterator

from ortdeploy.manifest.write import scalar
from ortdeploy.operations.yolo_decode import cells
from ortdeploy.starters import provenance, yaml_text
from ortdeploy.starters.labels import Labels, find_labels, named
from ortdeploy.starters.model_info import Starter, Subject
from ortdeploy.starters.pictures import PictureInput, picture_input, sample_pictures, size_of
from ortdeploy.starters.provenance import Page

_RANK, _BEFORE_CLASSES = 3, 5
_MULTIPLE = 32
"""Sides of the picture are multiples of the largest cell that every YOLOX has."""
_BATCH = 8
_OF = "YOLOX's own"
_FITTED = {"place": "top_left", "sampling": "opencv"}
_CHOSEN = {"score": 0.3, "iou": 0.45, "labels": "best", "among": "all"}


def recognise(subject: Subject) -> Iterator[Starter]:
    """Yield a manifest from pictures to boxes."""
    picture = picture_input(subject)
    if picture is None or picture.layout != "NCHW" or picture.channels == 1 or not picture.floating:
        return
    size = (picture.height, picture.width)
    outputs = [name for name in subject.ran.outputs if _is_head(subject, name, size)]
    version = _version(subject)
    if len(outputs) == 1 and version is not None and not any(side % _MULTIPLE for side in size):
        yield _starter(subject, picture, outputs[0], version)


def _is_head(subject: Subject, output: str, size: tuple[int, int]) -> bool:
    """Return whether an output is [rows, cells, 5 + classes]; the graph must fix the classes."""
    shape, ran = subject.shape_of(output), subject.ran_shape(output)
    if len(shape) != _RANK or ran[1] not in cells(size):
        return False
    return isinstance(shape[2], int) and shape[2] > _BEFORE_CLASSES


def _version(subject: Subject) -> str | None:
    """Return as which version the output is decoded; None if the graph does not end as one of YOLOX does.

    YOLOX ends by turning the heads. An export with decode_in_inference goes on to pixels, for which it takes the
    exponential of widths and heights.
    """
    operators = [node.operator for node in subject.facts.nodes]
    if "Exp" in operators:
        return "v5"
    return "yolox" if operators and operators[-1] == "Transpose" else None


def _starter(subject: Subject, picture: PictureInput, output: str, version: str) -> Starter:
    classes = subject.ran_shape(output)[2] - _BEFORE_CLASSES
    labels = find_labels(subject, classes)
    lines = _steps(subject, picture, output, version, labels)
    result = {"boxes": "$there", "scores": "$sure", "classes": "$classes"} | ({"labels": "$labels"} if labels else {})
    text = (
        yaml_text.head(
            f"An export of YOLOX, by its {subject.ran_shape(output)[1]:,} boxes with {classes} classes.",
            "Its pictures are blue, green, red, from 0 to 255, as YOLOX has them since 0.1.1.",
        )
        + yaml_text.models(subject)
        + yaml_text.pipeline("find", lines, result)
        + yaml_text.picture_job(subject, yaml_text.batch(picture.batch, _BATCH))
    )
    files = sample_pictures(subject, picture.height, picture.width, labels)
    return Starter(family="an export of YOLOX", page=Page(marked=text), files=files)


def _steps(subject: Subject, picture: PictureInput, output: str, version: str, labels: Labels | None) -> Iterator[str]:
    """Yield the steps from the picture to boxes in it, and to their labels."""
    box = f"size: {size_of(picture)}"
    size = f", {box}" if version == "yolox" else ""
    place, sampling = (provenance.convention(name, name_of, _OF) for name, name_of in _FITTED.items())
    yield f"{{do: letterbox, in: {{image: $image, {box}, place: {place}, sampling: {sampling}}}, out: [fitted, how]}}"
    yield f"{provenance.convention('BGR from 0 to 255', '{do: bgr, in: {x: $fitted}, out: turned}', _OF)}"
    yield f"{{do: layout, in: {{x: $turned, layout: {provenance.graph('layout', 'NCHW')}}}, out: planes}}"
    yield f"{{do: cast, in: {{x: $planes, cast: {provenance.graph('cast', 'float32')}}}, out: fed}}"
    yield f"{{run: {scalar(subject.name)}, in: {{{scalar(picture.name)}: $fed}}, out: {{{scalar(output)}: raw}}}}"
    of = provenance.graph("version", version)
    yield f"{{do: yolo_decode, in: {{x: $raw, version: {of}{size}}}, out: [boxes, scores]}}"
    chosen = ", ".join(
        f"{name}: {provenance.convention(f'{name} {value}', value, _OF)}" for name, value in _CHOSEN.items()
    )
    yield f"{{do: nms, in: {{boxes: $boxes, scores: $scores, {chosen}}}, out: [kept, sure, classes]}}"
    yield "{do: unletterbox, in: {boxes: $kept, how: $how}, out: there}"
    yield from named(labels, "classes", "labels")
