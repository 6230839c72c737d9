"""Finds the layout in which a graph uses images, from its convolutions and pools.

ONNX's convolutions work on NCHW by definition. A graph that first moves the last axis to the front takes NHWC. The
weights of a convolution also tell the number of channels, if the input's shape leaves it open.
"""

import math
from collections.abc import Mapping

import onnx
from msgspec import Struct
from msgspec.structs import replace

_ELEMENTWISE = {"Cast", "Clip", "DequantizeLinear", "Identity", "QuantizeLinear", "Relu", "Sigmoid"}
_ARITHMETIC = {"Add", "Div", "Mul", "Sub"}
_RESIZING = {"Pad", "Resize", "Upsample"}
_CONVOLUTIONS = {"Conv": 1, "ConvInteger": 1, "QLinearConv": 3}
"""Convolutions, and which of their inputs are the weights [filters, channels / group, height, width]."""

_POOLS = {"AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"}
_TO_NCHW = (0, 3, 1, 2)
_RANK = 4

Shapes = Mapping[str, tuple[int, ...]]


class ImageUse(Struct, frozen=True):
    """The layout in which a graph takes an input, and its channels if weights tell them."""

    layout: str
    channels: int | None


class _Image(Struct, frozen=True):
    """An input on its way through the graph: its layout at the input, and whether it still has its own channels."""

    input: str
    layout: str = "NCHW"
    own_channels: bool = True


def image_uses(graph: onnx.GraphProto) -> dict[str, ImageUse]:
    """Return how the graph uses its inputs as images; an input that it uses in two ways is left out."""
    constants = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    images = {value.name: _Image(value.name) for value in graph.input if value.name not in constants}
    uses: dict[str, set[ImageUse]] = {}
    for node in graph.node:
        if node.domain not in {"", "ai.onnx"} or not node.output:
            continue
        _follow_constant(node, constants)
        image = _follow_image(node, images, constants)
        if image is not None:
            images[node.output[0]] = image
        elif node.input and node.input[0] in images:
            use = _use(node, images[node.input[0]], constants)
            uses.setdefault(images[node.input[0]].input, set()).update({use} if use else ())
    return {name: merged for name, found in uses.items() if (merged := _merged(found))}


def _follow_constant(node: onnx.NodeProto, constants: dict[str, tuple[int, ...]]) -> None:
    """Note the shape of a constant, also behind its dequantization."""
    value = next((attribute.t for attribute in node.attribute if attribute.name == "value"), None)
    if node.op_type == "Constant" and value is not None:
        constants[node.output[0]] = tuple(value.dims)
    elif node.op_type in _ELEMENTWISE and node.input and node.input[0] in constants:
        constants[node.output[0]] = constants[node.input[0]]


def _follow_image(node: onnx.NodeProto, images: Mapping[str, _Image], constants: Shapes) -> _Image | None:
    """Return the image that a node passes on, with the same axes or moved from NHWC to NCHW."""
    image = next((images[name] for name in node.input if name in images), None)
    if image is None or node.op_type in _ELEMENTWISE:
        return image
    if node.op_type in _RESIZING:
        return replace(image, own_channels=False)
    if node.op_type in _ARITHMETIC:
        other = next((constants[name] for name in node.input if name in constants), None)
        keeps = image.own_channels and math.prod(other or ()) == 1  # more than one may be more channels
        return replace(image, own_channels=keeps) if other is not None else None
    permutation = next((tuple(attribute.ints) for attribute in node.attribute if attribute.name == "perm"), None)
    if node.op_type == "Transpose" and permutation == _TO_NCHW and image.layout == "NCHW":
        return replace(image, layout="NHWC")
    return None


def _use(node: onnx.NodeProto, image: _Image, constants: Shapes) -> ImageUse | None:
    if node.op_type in _POOLS:
        return ImageUse(image.layout, None)
    weights = _CONVOLUTIONS.get(node.op_type)
    shape = constants.get(node.input[weights], ()) if weights is not None and len(node.input) > weights else ()
    if len(shape) != _RANK:
        return None
    group = next((attribute.i for attribute in node.attribute if attribute.name == "group"), 1)
    return ImageUse(image.layout, shape[1] * group if image.own_channels else None)


def _merged(uses: set[ImageUse]) -> ImageUse | None:
    """Return the common layout of all uses, if they agree."""
    layouts = {use.layout for use in uses}
    channels = {use.channels for use in uses if use.channels is not None}
    if len(layouts) != 1 or len(channels) > 1:
        return None
    return ImageUse(layouts.pop(), channels.pop() if channels else None)
