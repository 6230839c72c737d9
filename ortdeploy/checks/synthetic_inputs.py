"""Makes inputs for a model that has none: of its types, within its limits, in sizes that its graph allows."""

from collections.abc import Sequence
from itertools import cycle, islice

import numpy as np

from ortdeploy.plan.steps import SyntheticInput
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.conversion import cast

_ROWS = (1, 3, 2, 4)
_SIZES = (8, 16, 4, 12)
"""Sizes of open dimensions, few of them: providers keep something for each shape."""


def synthetic_feeds(inputs: Sequence[SyntheticInput]) -> list[dict[str, Array]]:
    """Return feeds of several shapes, mostly [rows, …]; a symbol is one number in all inputs of a set."""
    random = np.random.default_rng(0)
    return [_feed(inputs, index, random) for index in range(len(_SIZES))]


def _feed(inputs: Sequence[SyntheticInput], index: int, random: np.random.Generator) -> dict[str, Array]:
    sizes: dict[str, int] = {}
    feed = {}
    for one in inputs:
        shape = []
        for axis, size in enumerate(one.shape or ()):
            made = next(islice(cycle(_SIZES if axis else _ROWS), index, None))
            shape.append(size if isinstance(size, int) else sizes.setdefault(size, made) if size else made)
        feed[one.name] = _array(one, tuple(shape), random)
    return feed


def _array(one: SyntheticInput, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    if one.dtype == "string":
        return np.full(shape, "a", dtype=object)
    low, high = one.limits or (0.0, 1.0)
    numbers = random.uniform(low, high, size=shape)
    return cast(numbers, one.dtype)
