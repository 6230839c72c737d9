"""Segmenters: models that give the scores of classes for each pixel, [rows, classes, height, width].

A graph alone does not tell classes from the channels of a picture. So the output must be called as torchvision calls
it, config.json must name the class of the model, or a file must have as many labels as there are classes.
"""

from collections.abc import Iterator

from ortdeploy.manifest.write import scalar
from ortdeploy.starters import provenance, yaml_text
from ortdeploy.starters.classifier import prepared
from ortdeploy.starters.labels import find_labels
from ortdeploy.starters.model_info import Starter, Subject
from ortdeploy.starters.pictures import PictureInput, picture_input, sample_path, sample_pictures
from ortdeploy.starters.provenance import Page

_RANK, _LEAST, _MOST = 4, 2, 256
_OF_TORCHVISION = "out"
_TASK = "ForSemanticSegmentation"
_BATCH = 4
_LARGE = (
    "{op: Resize, by_row: true, in: {X: $scores, sizes: $sizes}, attributes: {mode: linear, axes: [1, 2]}, out: large}"
)
_BEST = (
    "{op: ArgMax, by_row: true, in: {data: $large}, attributes: {axis: 0, keepdims: 0}, out: best}",
    "{do: cast, in: {x: $best, cast: uint8}, out: classes}",
)


def recognise(subject: Subject) -> Iterator[Starter]:
    """Yield a manifest from pictures to pictures of classes."""
    picture = picture_input(subject)
    if picture is None or picture.channels == 1:
        return
    for name in subject.ran.outputs:
        classes = _classes(subject, name)
        if classes is not None and _is_said(subject, name, classes):
            yield _starter(subject, picture, name, classes)
            return


def _classes(subject: Subject, output: str) -> int | None:
    """Return how many classes an output scores for each pixel, if uint8 can number them."""
    shape = subject.shape_of(output)
    if len(shape) != _RANK or min(subject.ran_shape(output)[2:]) < _LEAST:
        return None
    return shape[1] if isinstance(shape[1], int) and _LEAST <= shape[1] <= _MOST else None


def _is_said(subject: Subject, output: str, classes: int) -> bool:
    has_task = any(one.endswith(_TASK) for one in subject.architectures)
    return output == _OF_TORCHVISION or has_task or find_labels(subject, classes) is not None


def _starter(subject: Subject, picture: PictureInput, output: str, classes: int) -> Starter:
    labels = find_labels(subject, classes)
    steps, told = prepared(subject, picture)
    lines = [
        f"{{run: {scalar(subject.name)}, in: {{{scalar(picture.name)}: $image}}, out: {{{scalar(output)}: scores}}}}",
        str(provenance.convention("scores as large as the picture that is read", _LARGE, "transformers'")),
        *(str(provenance.graph("the best class of each pixel", step)) for step in _BEST),
    ]
    named = f"; the lines of {labels.path} name them" if labels else ""
    text = (
        yaml_text.head(
            f"A segmenter of {classes} classes: a pixel of its pictures is the number of the best one, from 0{named}."
        )
        + yaml_text.models(subject)
        + yaml_text.pipeline("segment", lines, {"classes": "$classes"})
        + yaml_text.input_section(
            subject, sample_path(subject), "columns: {image: pixels, sizes: [height, width]}", "key: [path]"
        )
        + yaml_text.prepare("image", steps, told)
        + yaml_text.batch(picture.batch, _BATCH)
        + yaml_text.output(subject, f"images: {provenance.choice('images', '[classes]')}")
    )
    files = sample_pictures(subject, picture.height, picture.width, labels)
    return Starter(family="a segmenter of pictures", page=Page(marked=text), files=files)
