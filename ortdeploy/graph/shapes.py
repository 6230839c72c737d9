"""Whether a graph can take tensors of given sizes, by onnx's own shape inference on a copy without weights.

A batch size can be written into a graph's body, most often into a Reshape, while its inputs look free. ONNX Runtime
finds out at the first run, and sometimes broadcasts instead.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx

from ortdeploy.tensors import Shape

_SAME_COUNT = {"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
"""Operators whose output has as many elements as their first input; inference does not compare them."""


_COMPLAINT = re.compile(r"\(op_type:(?P<operator>\w+)(?:, node name: (?P<name>[^)]*))?\):(?P<reason>[^\n]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inferred:
    """The shapes of a graph's outputs, or why it cannot take its inputs."""

    outputs: Mapping[str, Shape | None] = field(default_factory=dict)
    problem: str | None = None


def infer_shapes(skeleton: bytes, inputs: Mapping[str, Sequence[int | None]]) -> Inferred:
    """Infer with the given shapes of some inputs; a graph that is not consistent as it stands is not judged."""
    model = onnx.ModelProto.FromString(skeleton)
    _forget_shapes(model.graph)
    try:
        onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except Exception:  # noqa: BLE001  inference raises what it likes
        return Inferred()
    for value in model.graph.input:
        if value.name in inputs:
            _set_shape(value.type.tensor_type, inputs[value.name])
    try:
        model = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except Exception as error:  # noqa: BLE001  inference raises what it likes
        return Inferred(problem=_first_reason(str(error)))
    shapes = {value.name: _shape(value) for value in (*model.graph.input, *model.graph.value_info, *model.graph.output)}
    problem = next(_wrong_counts(model.graph, shapes), None)
    return Inferred(outputs={value.name: shapes[value.name] for value in model.graph.output}, problem=problem)


def _forget_shapes(graph: onnx.GraphProto) -> None:
    """Take away what the exporter wrote down about sizes inside of the graph: it may be of another batch."""
    del graph.value_info[:]
    for value in graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    for attribute in (attribute for node in graph.node for attribute in node.attribute):
        for inner in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
            _forget_shapes(inner)


def _set_shape(tensor: onnx.TypeProto.Tensor, sizes: Sequence[int | None]) -> None:
    written = list(tensor.shape.dim) if tensor.HasField("shape") else [onnx.TensorShapeProto.Dimension() for _ in sizes]
    tensor.ClearField("shape")
    for size, dim in zip(sizes, written, strict=False):
        if size is None:
            tensor.shape.dim.add().CopyFrom(dim)
        else:
            tensor.shape.dim.add().dim_value = size


def _shape(value: onnx.ValueInfoProto) -> Shape | None:
    tensor = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not tensor.HasField("shape"):
        return None
    return tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim)


def _wrong_counts(graph: onnx.GraphProto, shapes: Mapping[str, Shape | None]) -> Iterator[str]:
    for node in graph.node:
        if node.op_type not in _SAME_COUNT or not node.input or not node.output:
            continue
        before, after = shapes.get(node.input[0]), shapes.get(node.output[0])
        if _count(before) is not None and _count(after) is not None and _count(before) != _count(after):
            yield f"{node.op_type} ({node.name or node.output[0]}) makes {_shown(after)} of {_shown(before)}"


def _count(shape: Shape | None) -> int | None:
    sizes = [size for size in shape or (None,) if isinstance(size, int)] if shape != () else []
    return math.prod(sizes) if shape is not None and len(sizes) == len(shape) else None


def _shown(shape: Shape | None) -> str:
    return "[" + ", ".join(map(str, shape or ())) + "]"


def _first_reason(text: str) -> str:
    """Return the first node that inference complains of and why: `Concat (name): Incompatible dimensions`."""
    match = _COMPLAINT.search(text)
    if match is None:
        return "its shapes contradict each other"
    name = f" ({match['name']})" if match["name"] else ""
    return f"{match['operator']}{name}: {match['reason'].rpartition(']')[2].strip().rstrip('.')}"
