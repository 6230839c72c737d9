"""The families of models, in the order in which they are asked; the last one takes any model."""

from collections.abc import Iterator
from typing import Protocol

from ortdeploy.starters import (
    any_model,
    classifier,
    detectors,
    diffusion,
    encoder,
    listener,
    magika,
    recordings,
    segmenter,
    series,
    tables,
    text_detector,
    text_recogniser,
    ultralytics,
    wake_word,
    writer,
    yolox,
)
from ortdeploy.starters.model_info import Starter, Subject


class Family(Protocol):
    """What a module of a family has."""

    def recognise(self, subject: Subject) -> Iterator[Starter]:
        """Yield manifests for a model of the family, the likeliest first; nothing for any other model."""


FAMILIES: tuple[Family, ...] = (
    diffusion,
    writer,
    series,
    tables,
    encoder,
    ultralytics,
    text_detector,
    text_recogniser,
    yolox,
    detectors,
    segmenter,
    magika,
    wake_word,
    listener,
    recordings,
    classifier,
    any_model,
)


def starters_for(subject: Subject) -> Iterator[Starter]:
    """Yield manifests for a model, the likeliest first."""
    for family in FAMILIES:
        yield from family.recognise(subject)
