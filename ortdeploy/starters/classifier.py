"""Models that take a picture and give a vector: scores of classes, with labels if they are found, or features."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ortdeploy.manifest.write import flow, scalar
from ortdeploy.starters import provenance, yaml_text
from ortdeploy.starters.labels import Labels, find_labels
from ortdeploy.starters.model_info import Starter, Subject
from ortdeploy.starters.pictures import PER_255, PictureInput, picture_input, sample_path, sample_pictures, size_of
from ortdeploy.starters.provenance import Given, Page
from ortdeploy.starters.text_recogniser import missing_letters
from ortdeploy.starters.ultralytics import finds_boxes, is_ultralytics
from ortdeploy.tensors.types import Shape

_IMAGENET = (1000, 1001)
_MEAN, _STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
_BATCH = 16
_PROBABILITIES = ("Sigmoid", "Softmax")
"""Operators that give probabilities; of all else, a softmax makes them."""

_LEAST_SIDE, _MOST_SIDE = 32, 2**15
"""A smaller map of numbers need not be a picture, and a larger one is none."""

FAMILY = "a model that takes a picture"
_METHODS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
"""Pillow's numbers of resampling methods, as preprocessor_config.json has them."""


def recognise(subject: Subject) -> Iterator[Starter]:
    """Yield a manifest for a model that gives a vector a picture or takes photographs, and where pictures are given."""
    picture = None if finds_boxes(subject) else picture_input(subject)
    vectors = [name for name in subject.ran.outputs if _is_vector(name, subject.shape_of(name))]
    if picture is not None and (vectors or subject.data is not None or _is_photograph(picture)):
        yield _starter(
            subject, picture, [name for name in vectors if _inner(subject, name) == _inner(subject, vectors[0])]
        )


def _inner(subject: Subject, output: str) -> Shape:
    """Return the shape of one row of an output."""
    return subject.shape_of(output)[1:]


def _is_photograph(picture: PictureInput) -> bool:
    return picture.channels > 1 and min(picture.height, picture.width) >= _LEAST_SIDE


def _is_vector(name: str, shape: Shape) -> bool:
    """Return whether an output has one vector a row, also as a map of one pixel if steps can name it.

    The graph says how many numbers that are; a size that grows with the picture is not that of a vector.
    """
    if len(shape) < 2 or not isinstance(shape[1], int) or shape[1] < 2 or any(size != 1 for size in shape[2:]):  # noqa: PLR2004  rows and values
        return False
    return len(shape) == 2 or name.isidentifier()  # noqa: PLR2004


def _starter(subject: Subject, picture: PictureInput, heads: Sequence[str]) -> Starter:
    """Return a manifest; `heads` are the outputs with a vector a row, all of one size: captchas have several."""
    classes = _classes(subject, heads)
    labels = find_labels(subject, classes) if classes else None
    prepare, told = prepared(subject, picture)
    scored = labels is not None or classes in _IMAGENET or any(subject.operator_of(head) == "Softmax" for head in heads)
    columns, post = _scored(subject, heads, labels) if scored else ([], [])
    left_out = [one.name for one in subject.facts.outputs if one.name not in heads] if scored else []
    text = (
        yaml_text.head(*_intro(labels, classes, scored=scored), *_left_out(left_out))
        + yaml_text.models(subject)
        + yaml_text.model_job(subject)
        + yaml_text.input_section(
            subject, sample_path(subject), f"columns: {flow({picture.name: 'pixels'})}", "key: [path]"
        )
        + yaml_text.prepare(picture.name, prepare, told)
        + yaml_text.batch(picture.batch, _BATCH)
        + ("    postprocess:\n" + yaml_text.steps(post, 6) if scored else "")
        + yaml_text.output(subject, *([f"columns: {flow(columns)}"] if scored else []))
    )
    files = sample_pictures(subject, picture.height, picture.width, labels)
    kind = "a picture classifier" if scored else "a model that gives a vector for a picture" if classes else FAMILY
    question = None if scored else missing_letters(subject)
    return Starter(family=kind, page=Page(marked=text), files=files, question=question)


def _classes(subject: Subject, heads: Sequence[str]) -> int:
    size = subject.shape_of(heads[0])[1] if heads else None
    return size if isinstance(size, int) else 0


def _intro(labels: Labels | None, classes: int, *, scored: bool) -> list[str]:
    if not classes:
        return ["A model that takes a picture. What it gives is written as it is."]
    if not scored:
        return [f"A model that gives {classes} numbers for a picture. Nothing says that they are scores of classes."]
    told = f"labels: {labels.told}" if labels else "no labels were found: class is the number of the best one"
    return [f"A picture classifier of {classes} classes; {told}."]


def _left_out(outputs: Sequence[str]) -> list[str]:
    return [f"Left out of columns: {', '.join(outputs)}."] if outputs else []


def _scored(subject: Subject, heads: Sequence[str], labels: Labels | None) -> tuple[list[str], list[str]]:
    """Return the columns and the steps that make the best class of each head."""
    columns: list[str] = []
    steps: list[str] = []
    for head in heads:
        before = "" if len(heads) == 1 else re.sub(r"\W", "_", head) + "_"
        made = {what: f"{before}{what}" for what in ("flat", "scores", "class", "probability", "label")}
        columns += [made["class"], made["probability"], *([made["label"]] if labels is not None else [])]
        steps += _postprocess(subject, head, labels, made)
    return columns, steps


def _postprocess(subject: Subject, output: str, labels: Labels | None, made: Mapping[str, str]) -> Iterator[str]:
    """Yield the steps of one head, whose results are called as in `made`."""
    scores = output
    if len(subject.shape_of(output)) > 2:  # noqa: PLR2004
        yield f"{{op: Flatten, in: {{input: ${output}}}, out: {made['flat']}}}"
        scores = made["flat"]
    if subject.operator_of(output) not in _PROBABILITIES:
        yield f"{{softmax: {scalar(scores)}, as: {made['scores']}}}"
        scores = made["scores"]
    yield f"{{argmax: {scalar(scores)}, as: {made['class']}, value_as: {made['probability']}}}"
    if labels is not None:
        yield f"{{labels: {made['class']}, from: {labels.written}, as: {made['label']}}}"


def prepared(subject: Subject, picture: PictureInput) -> tuple[list[str], str]:
    """Return the steps, and where they are from: a file beside the model, ultralytics' ways, or nothing but custom."""
    settings, beside = subject.preprocessor("image_processor")
    if not settings:
        settings, beside = _of_timm(subject)
    of: _Origin
    if settings:
        of, told = provenance.beside, f"as {beside} says"
    elif is_ultralytics(subject):
        settings, told = _ultralytics_settings(picture), "as ultralytics prepares pictures for its classifiers"
        of = partial(provenance.convention, of="ultralytics")
    else:
        of = partial(provenance.convention, of="ImageNet's; nothing in the files tells")
        told = "by convention: nothing in the files tells"
    steps = [_colors(picture.channels, of), *_resized(settings, picture, of)]
    if picture.floating:
        steps += _scaled(settings, picture.channels, of)
    if picture.layout == "NCHW":
        steps.append(f"{{layout: {provenance.graph('layout', 'NCHW')}}}")
    return steps, told


_Origin = Callable[[str, object], Given]
"""What makes a value of its name and text, with its origin."""


def _ultralytics_settings(picture: PictureInput) -> Mapping[str, Any]:
    """Return what classify_transforms of ultralytics does, as a preprocessor_config.json would say it."""
    size = min(picture.height, picture.width)
    return {"size": {"shortest_edge": size}, "do_center_crop": True, "do_normalize": False, "resample": 2}


def _of_timm(subject: Subject) -> tuple[Mapping[str, Any], str | None]:
    """Return what the config.json of timm says of pictures, as a preprocessor_config.json would, and its path."""
    said = subject.settings("config.json").get("pretrained_cfg")
    size = said.get("input_size") if isinstance(said, dict) else None
    sides = size if isinstance(size, list) and all(type(one) is int and 0 < one <= _MOST_SIDE for one in size) else []
    if not isinstance(said, dict) or len(sides) != 3:  # noqa: PLR2004  channels first
        return {}, None
    share = said.get("crop_pct")
    numbers = {name: method for method, name in _METHODS.items()}
    around = int(sides[1] / share) if isinstance(share, int | float) and 0.1 <= share <= 1 else sides[1]  # noqa: PLR2004  less is no share
    settings = {
        "size": {"shortest_edge": around},
        "do_center_crop": True,
        "crop_size": {"height": sides[1], "width": sides[2]},
        "resample": numbers.get(str(said.get("interpolation"))),
        "image_mean": said.get("mean"),
        "image_std": said.get("std"),
    }
    return {name: value for name, value in settings.items() if value is not None}, subject.beside("config.json")


def _colors(channels: int, of: _Origin) -> str:
    """Return the step that gives a picture the channels that a model takes; a graph does not tell red from blue."""
    return (
        f"{{grayscale: {provenance.graph('grayscale', 'true')}}}" if channels == 1 else f"{{rgb: {of('RGB', 'true')}}}"
    )


def _resized(settings: Mapping[str, Any], picture: PictureInput, of: _Origin) -> Iterator[str]:
    """Yield the steps to the size that the model takes, with a cut from the middle if the settings say so."""
    resample, size, crops = settings.get("resample"), settings.get("size"), settings.get("do_center_crop")
    named = _METHODS.get(resample) if isinstance(resample, int) else None
    method = of("method", named) if named else provenance.convention("method", "bilinear", "the usual one")
    taken = _size(_sides(settings.get("crop_size") if crops else size) if picture.open else None, picture)
    shortest = size.get("shortest_edge") if isinstance(size, dict) else size  # as files of old versions have it
    before = {"shortest": shortest} if isinstance(shortest, int) else _sides(size)
    if crops and before:
        yield f"{{resize: {of('size', flow(before))}, method: {method}}}"
        yield f"{{center_crop: {taken}}}"
    elif keeps_proportions(settings, picture):
        edges = {"shortest": shortest, "longest": settings["size"].get("longest_edge")}
        kept = {name: side for name, side in edges.items() if isinstance(side, int)}
        yield f"{{resize: {of('size', flow(kept))}, method: {method}}}"
    else:
        yield f"{{resize: {taken}, method: {method}}}"


def keeps_proportions(settings: Mapping[str, Any], picture: PictureInput) -> bool:
    """Return whether pictures are fed in their own proportions, so that those of a batch may differ in size."""
    size = settings.get("size")
    edges = size if isinstance(size, dict) else {}
    return picture.open and not settings.get("do_center_crop") and isinstance(edges.get("shortest_edge"), int)


def _size(named: list[int] | None, picture: PictureInput) -> Given:
    """Return the height and width that the model takes: as a file says, as the graph does, or usual ones."""
    if named:
        return provenance.beside("size", flow(named))
    return size_of(picture)


def _sides(size: Any) -> list[int] | None:
    """Return the height and width of a setting; None if it says something else."""
    height, width = (size.get("height"), size.get("width")) if isinstance(size, dict) else (size, size)
    return [height, width] if isinstance(height, int) and isinstance(width, int) else None


def _scaled(settings: Mapping[str, Any], channels: int, of: _Origin) -> Iterator[str]:
    """Yield the steps to the values that the model takes."""
    factor = settings.get("rescale_factor")
    if not settings.get("do_rescale", True):
        yield f"{{cast: {of('scale', 'float32')}}}"
    elif isinstance(factor, int | float):
        yield f"{{scale: {of('scale', scalar(factor))}}}"
    else:
        yield f"{{scale: {of('scale', PER_255)}}}"
    mean, std = settings.get("image_mean", _MEAN), settings.get("image_std", _STD)
    if settings.get("do_normalize", True) and _is_for(channels, mean) and _is_for(channels, std):
        yield f"{{normalize: {{mean: {of('mean', flow(mean))}, std: {of('std', flow(std))}}}}}"


def _is_for(channels: int, values: Any) -> bool:
    """Return whether a setting has a number for each channel, or one for all."""
    return isinstance(values, int | float) or (isinstance(values, list) and len(values) == channels)
