"""Models that take a picture and give a vector: scores of classes, with labels if they are found, or features."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ortdeploy.manifest.write import flow, scalar
from ortdeploy.starters import writing
from ortdeploy.starters.labels import Labels, find_labels
from ortdeploy.starters.pictures import (
    SCALE,
    PictureInput,
    colors,
    picture_input,
    sample_path,
    sample_pictures,
)
from ortdeploy.starters.subject import Starter, Subject
from ortdeploy.starters.text_recogniser import missing_letters

_IMAGENET = (1000, 1001)
_MEAN, _STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
_BATCH = 16
_LAST_NODES = 6
"""Among which a softmax is that of the scores: casts, reshapes and steps of quantization may follow it."""

_LEAST_SIDE = 32
"""A smaller map of numbers need not be a picture."""

FAMILY = "a model that takes a picture"
_METHODS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
"""Pillow's numbers of resampling methods, as preprocessor_config.json has them."""


def recognise(subject: Subject) -> Iterator[Starter]:
    """Yield a manifest for a model that gives a vector a picture or takes photographs, and where pictures are given."""
    picture = picture_input(subject)
    vectors = [name for name, shape in subject.ran.outputs.items() if _is_vector(name, shape)]
    if picture is not None and (vectors or subject.data is not None or _is_photograph(picture)):
        yield _starter(
            subject, picture, [name for name in vectors if subject.shape_of(name) == subject.shape_of(vectors[0])]
        )


def _is_photograph(picture: PictureInput) -> bool:
    return picture.channels > 1 and min(picture.height, picture.width) >= _LEAST_SIDE


def _is_vector(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether an output has one vector a row, also as a map of one pixel if steps can name it."""
    if len(shape) < 2 or shape[1] < 2 or any(size != 1 for size in shape[2:]):  # noqa: PLR2004  rows and values
        return False
    return len(shape) == 2 or name.isidentifier()  # noqa: PLR2004


def _starter(subject: Subject, picture: PictureInput, heads: Sequence[str]) -> Starter:
    """Return a manifest; `heads` are the outputs with a vector a row, all of one size: captchas have several."""
    classes = subject.shape_of(heads[0])[1] if heads else 0
    labels = find_labels(subject, classes) if classes else None
    prepare, told, assumed = _prepare(subject, picture)
    scored = labels is not None or classes in _IMAGENET or (classes > 0 and _last_is_softmax(subject))
    columns, post = _scored(subject, heads, labels) if scored else ([], [])
    left_out = [one.name for one in subject.facts.outputs if one.name not in heads] if scored else []
    text = (
        writing.head(*_intro(labels, classes, scored=scored), *_left_out(left_out))
        + writing.models(subject)
        + f"jobs:\n  run:\n    model: {scalar(subject.name)}\n"
        + writing.input_section(
            subject,
            sample_path(subject),
            "made by init",
            f"columns: {flow({picture.name: 'pixels'})}",
            "key: [path]",
        )
        + f"    prepare:\n      {scalar(picture.name)}:  {writing.comment(told)}\n"
        + writing.steps(prepare, 8)
        + f"    batch: {{size: {picture.batch or _BATCH}}}\n"
        + ("    postprocess:\n" + writing.steps(post, 6) if scored else "")
        + writing.output(subject, *([f"columns: {flow(columns)}"] if scored else []))
    )
    files = sample_pictures(subject, picture.height, picture.width) | dict(labels.files if labels else {})
    kind = "a picture classifier" if scored else "a model that gives a vector for a picture" if classes else FAMILY
    question = None if scored else missing_letters(subject)
    return Starter(family=kind, text=text, files=files, question=question, assumed=assumed)


def _intro(labels: Labels | None, classes: int, *, scored: bool) -> list[str]:
    if not classes:
        return ["A model that takes a picture. What it gives is written as it is."]
    if not scored:
        return [f"A model that gives {classes} numbers for a picture. Nothing says that they are scores of classes."]
    told = f"labels: {labels.told}" if labels else "no labels were found: class is the number of the best one"
    return [f"A picture classifier of {classes} classes; {told}."]


def _last_is_softmax(subject: Subject) -> bool:
    return any(node.operator == "Softmax" for node in subject.facts.nodes[-_LAST_NODES:])


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
    low, high = subject.ran.ranges.get(output, (-1.0, 1.0))
    scores = output
    if len(subject.shape_of(output)) > 2:  # noqa: PLR2004
        yield f"{{op: Flatten, in: {{input: ${output}}}, out: {made['flat']}}}"
        scores = made["flat"]
    if low < 0 or high > 1:
        yield f"{{softmax: {scalar(scores)}, as: {made['scores']}}}"
        scores = made["scores"]
    yield f"{{argmax: {scalar(scores)}, as: {made['class']}, value_as: {made['probability']}}}"
    if labels is not None:
        yield f"{{labels: {made['class']}, from: {scalar(labels.path)}, as: {made['label']}}}"


def _prepare(subject: Subject, picture: PictureInput) -> tuple[list[str], str, str | None]:
    """Return the steps, where they are from, and what of them is assumed."""
    beside = subject.beside("preprocessor_config.json")
    settings = subject.settings("preprocessor_config.json")
    assumed = None if settings else _assumed(picture)
    steps = [colors(picture.channels), *_resized(settings, picture)]
    if picture.floating:
        steps += _scaled(settings, picture.channels)
    if picture.layout == "NCHW":
        steps.append("{layout: NCHW}")
    return steps, assumed or f"as {beside} says", assumed


def _resized(settings: Mapping[str, Any], picture: PictureInput) -> Iterator[str]:
    """Yield the steps to the size that the model takes, with a cut from the middle if the settings say so."""
    resample, size, crops = settings.get("resample"), settings.get("size"), settings.get("do_center_crop")
    method = _METHODS.get(resample, "bilinear") if isinstance(resample, int) else "bilinear"
    named = _sides(settings.get("crop_size") if crops else size) if picture.open else None
    taken = named or [picture.height, picture.width]
    shortest = size.get("shortest_edge") if isinstance(size, dict) else size  # as files of old versions have it
    before = {"shortest": shortest} if isinstance(shortest, int) else _sides(size)
    if crops and before:
        yield f"{{resize: {flow(before)}, method: {method}}}"
        yield f"{{center_crop: {flow(taken)}}}"
    else:
        yield f"{{resize: {flow(taken)}, method: {method}}}"


def _sides(size: Any) -> list[int] | None:
    """Return the height and width of a setting; None if it says something else."""
    height, width = (size.get("height"), size.get("width")) if isinstance(size, dict) else (size, size)
    return [height, width] if isinstance(height, int) and isinstance(width, int) else None


def _assumed(picture: PictureInput) -> str | None:
    normalized = picture.floating and picture.channels == len(_MEAN)
    what = [
        *(["size"] if picture.open else []),
        *(["scale"] if picture.floating else []),
        *(["mean", "std"] if normalized else []),
        *(["RGB"] if picture.channels == len(_MEAN) else []),
    ]
    if not what:
        return None
    named = " and ".join([", ".join(what[:-1]), what[-1]] if what[1:] else what)
    return f"{named} {'are' if what[1:] else 'is'} assumed: nothing in the file tells"


def _scaled(settings: Mapping[str, Any], channels: int) -> Iterator[str]:
    """Yield the steps to the values that the model takes."""
    factor = settings.get("rescale_factor")
    if not settings.get("do_rescale", True):
        yield "{cast: float32}"
    else:
        yield f"{{scale: {scalar(factor)}}}" if isinstance(factor, int | float) else SCALE
    mean, std = settings.get("image_mean", _MEAN), settings.get("image_std", _STD)
    if settings.get("do_normalize", True) and _is_for(channels, mean) and _is_for(channels, std):
        yield f"{{normalize: {{mean: {flow(mean)}, std: {flow(std)}}}}}"


def _is_for(channels: int, values: Any) -> bool:
    """Return whether a setting has a number for each channel, or one for all."""
    return isinstance(values, int | float) or (isinstance(values, list) and len(values) == channels)
