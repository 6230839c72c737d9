"""Provider options that bound the shapes of model inputs: OpenVINO's reshape_input, TensorRT's profiles.

Formats: onnxruntime's OpenVINO provider ("name[1,1..8]", several separated by commas) and TensorRT provider
("name:1x3x224x224", several separated by commas; minimum, optimum and maximum in an option each).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from ortdeploy.providers.catalogue import Provider

Sizes = tuple[int, ...]

_BRACKETS = re.compile(r"\s*([^\[\],]+)\[([^\[\]]*)\]\s*(?:,|\Z)")
_RANGE = re.compile(r"\s*([0-9]+)(?:\s*\.\.\s*([0-9]+))?\s*\Z")
_CROSSES = re.compile(r"([0-9]+(?:x[0-9]+)*)\Z")
_PROFILES = {"Tensorrt": "trt_profile_{}_shapes", "NvTensorRTRTX": "nv_profile_{}_shapes"}


class InputBounds(Struct, frozen=True, kw_only=True):
    """The smallest and largest shape that an option allows for a model input."""

    option: str
    input: str
    low: Sizes
    high: Sizes


class ShapeOptions(Struct, frozen=True, kw_only=True):
    """What a provider's options say about input shapes, and what is wrong with their text by option.

    `complete`: every input whose shape is not fixed must be among them.
    """

    bounds: tuple[InputBounds, ...] = ()
    problems: tuple[tuple[str, str], ...] = ()
    complete: bool = False


def read_shape_options(provider: Provider, options: Mapping[str, Any]) -> ShapeOptions:
    """Read the options of a provider that has such; nothing for others."""
    if provider.short == "OpenVINO" and "reshape_input" in options:
        return _read_reshape(str(options["reshape_input"]))
    pattern = _PROFILES.get(provider.short)
    names = [pattern.format(end) for end in ("min", "opt", "max")] if pattern else []
    if names and all(name in options for name in names):
        return _read_profiles(names, [str(options[name]) for name in names])
    given = [name for name in names if name in options]
    if given and (absent := [name for name in names if name not in options]):
        wrong = f"{' and '.join(absent)} must be given with it; TensorRT drops an incomplete set."
        return ShapeOptions(problems=((given[0], wrong),))
    return ShapeOptions()


def _read_reshape(text: str) -> ShapeOptions:
    bounds, position = [], 0
    while position < len(text):
        match = _BRACKETS.match(text, position)
        ranges = [_RANGE.match(part) for part in match[2].split(",")] if match else [None]
        if match is None or any(one is None for one in ranges):
            wrong = f'"{text[position:]}" is not of the form name[1,3,1..8].'
            return ShapeOptions(problems=(("reshape_input", wrong),))
        low = tuple(int(one[1]) for one in ranges if one)
        high = tuple(int(one[2] or one[1]) for one in ranges if one)
        bounds.append(InputBounds(option="reshape_input", input=match[1].strip(), low=low, high=high))
        position = match.end()
    problems = tuple(_disordered(one.option, one.input, one.low, one.high) for one in bounds)
    return ShapeOptions(bounds=tuple(bounds), problems=tuple(filter(None, problems)))


def _read_profiles(names: Sequence[str], texts: Sequence[str]) -> ShapeOptions:
    """Read minimum, optimum and maximum; several profiles of one input follow each other in all three."""
    read: list[list[tuple[str, Sizes]]] = []
    for option, text in zip(names, texts, strict=True):
        shapes = [_shape(part) for part in text.split(",")]
        if None in shapes:
            return ShapeOptions(problems=((option, f'"{text}" is not of the form name:1x3x224x224.'),))
        read.append([shape for shape in shapes if shape is not None])
    inputs = [[name for name, _ in shapes] for shapes in read]
    different = next((option for option, own in zip(names, inputs, strict=True) if own != inputs[0]), None)
    if different is not None:
        return ShapeOptions(
            problems=((different, f"It names other inputs than {names[0]}; TensorRT drops all three."),)
        )
    problems: list[tuple[str, str]] = []
    bounds = []
    for (name, low), (_, middle), (_, high) in zip(*read, strict=True):
        bounds.append(InputBounds(option=names[0], input=name, low=low, high=high))
        problems += filter(None, (_disordered(names[1], name, low, middle), _disordered(names[2], name, middle, high)))
    return ShapeOptions(bounds=tuple(_hull(bounds)), problems=tuple(problems), complete=True)


def _shape(text: str) -> tuple[str, Sizes] | None:
    name, _, sizes = text.strip().rpartition(":")
    if not name or not _CROSSES.match(sizes):
        return None
    return name, tuple(int(size) for size in sizes.split("x"))


def _disordered(option: str, name: str, low: Sizes, high: Sizes) -> tuple[str, str] | None:
    if len(low) == len(high) and all(least <= most for least, most in zip(low, high, strict=True)):
        return None
    return option, f"For {name}, {_shown(high)} is smaller than {_shown(low)}, or has another rank."


def _shown(sizes: Sizes) -> str:
    return "x".join(map(str, sizes))


def _hull(bounds: Sequence[InputBounds]) -> Iterator[InputBounds]:
    """Join the profiles of one input to what they cover together."""
    for name in dict.fromkeys(one.input for one in bounds):
        own = [one for one in bounds if one.input == name]
        low = tuple(min(sizes) for sizes in zip(*(one.low for one in own), strict=False))
        high = tuple(max(sizes) for sizes in zip(*(one.high for one in own), strict=False))
        yield InputBounds(option=own[0].option, input=name, low=low, high=high)
