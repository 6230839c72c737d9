"""Finds out whether a graph can take inputs of given sizes, by onnx's shape inference node by node, without weights.

A batch size can be written into a graph's body, most often into a Reshape, while its inputs look free. ONNX Runtime
finds out at the first run, and sometimes broadcasts instead. What a graph computes from sizes is computed here too, by
onnx's reference implementation: exporters make Reshapes of Shape, Gather, Concat and the like.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ortdeploy.facts.models import InferredShapes
from ortdeploy.graph.inner_graphs import inlined, without_functions
from ortdeploy.graph.random_ops import ALWAYS_DRAW
from ortdeploy.graph.walk import own_graphs
from ortdeploy.tensors.types import Shape

_SAME_COUNT = {"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
"""Operators whose output has as many elements as their first input; inference does not compare them."""

_SMALL = 256  # elements of what is computed from sizes


def infer_shapes(skeleton: bytes, inputs: Mapping[str, Sequence[int | None]]) -> InferredShapes:
    """Infer with the given shapes of some inputs; a graph that is inconsistent without them is not judged."""
    model = _prepared(skeleton)
    if model is None:
        return InferredShapes()
    inference = _Inference(model, inputs)
    problems = inference.run()
    if problems:
        before = _Inference(model, {}).run()
        problem = next((text for index, text in problems.items() if index not in before), None)
        if problem is not None:
            return InferredShapes(problem=problem)
    return InferredShapes(outputs={value.name: inference.shape(value.name) for value in model.graph.output})


def infer_values(
    skeleton: bytes, inputs: Mapping[str, Sequence[int | None]]
) -> tuple[onnx.GraphProto, Mapping[str, onnx.TypeProto]] | None:
    """Return the graph with functions, branches and bodies inlined, and the type of each value that can be inferred."""
    model = _prepared(skeleton)
    if model is None:
        return None
    model.graph.CopyFrom(inlined(model.graph))
    inference = _Inference(model, inputs)
    inference.run()
    return model.graph, inference.types


def _prepared(skeleton: bytes) -> onnx.ModelProto | None:
    """Return a model to infer with; None if it is not consistent as it stands."""
    if not skeleton:
        return None
    model = onnx.ModelProto.FromString(skeleton)
    _forget_shapes(model.graph)
    try:
        onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        return without_functions(model)
    except Exception:  # noqa: BLE001  onnx raises what it likes
        return None


def _forget_shapes(graph: onnx.GraphProto) -> None:
    """Remove the exporter's sizes inside the graph: they may be of another batch."""
    del graph.value_info[:]
    for value in graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    for inner in (inner for node in graph.node for inner in own_graphs(node)):
        _forget_shapes(inner)


def _with_shape(kind: onnx.TypeProto, sizes: Sequence[int | None]) -> onnx.TypeProto:
    """Return a tensor's type with the sizes that are known."""
    made = onnx.TypeProto()
    made.CopyFrom(kind)
    tensor = made.tensor_type
    if not tensor.HasField("shape"):
        tensor.shape.dim.extend(onnx.TensorShapeProto.Dimension() for _ in sizes)
    for size, dim in zip(sizes, tensor.shape.dim, strict=False):
        if size is not None:
            dim.dim_value = size
    return made


class _Inference:
    """One pass over a graph's nodes in order; an unknown stays unknown in all that follows from it."""

    def __init__(self, model: onnx.ModelProto, inputs: Mapping[str, Sequence[int | None]]) -> None:
        self._graph = model.graph
        self._opsets = list(model.opset_import)
        self._versions = {opset.domain: opset.version for opset in model.opset_import}
        self._ir_version = model.ir_version
        self.types = {
            value.name: _with_shape(value.type, inputs[value.name]) if value.name in inputs else value.type
            for value in model.graph.input
        }
        self._data = {tensor.name: tensor for tensor in model.graph.initializer if tensor.name not in inputs}
        for name, tensor in self._data.items():
            self.types[name] = onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))

    def run(self) -> dict[int, str]:
        """Infer node by node; return those that cannot be, by their places, and why."""
        found = ((index, node, self._infer(node)) for index, node in enumerate(self._graph.node))
        return {index: f"{node.op_type} ({node.name or node.output[0]}): {text}" for index, node, text in found if text}

    def _infer(self, node: onnx.NodeProto) -> str | None:
        """Note a node's outputs; return why its inputs do not fit."""
        names = [name for name in node.input if name]
        if any(name not in self.types for name in names):
            return None
        try:
            schema = onnx.defs.get_schema(node.op_type, self._versions.get(node.domain, 1), node.domain)
            found = onnx.shape_inference.infer_node_outputs(
                schema,
                node,
                {name: self.types[name] for name in names},
                {name: self._data[name] for name in names if name in self._data},
                opset_imports=self._opsets,
                ir_version=self._ir_version,
            )
        except onnx.shape_inference.InferenceError as error:
            if any(attribute.HasField("g") for attribute in node.attribute):
                return None  # a branch that is not taken may well not fit
            return str(error).rpartition("]")[2].strip().rstrip(".")
        except Exception:  # noqa: BLE001  onnx raises what it likes: no schema, a graph in the node
            return None
        self.types.update(found)
        self._compute(node, names)
        return self._wrong_count(node)

    def _compute(self, node: onnx.NodeProto, names: Sequence[str]) -> None:
        """Note an output's values where they follow from sizes and small constants."""
        if (
            len(node.output) != 1
            or node.op_type in ALWAYS_DRAW
            or any(attribute.HasField("g") for attribute in node.attribute)
        ):
            return
        count = _count(self.shape(node.output[0]))
        if count is None or count > _SMALL:  # a few numbers can ask for gigabytes: Range, Expand, Tile
            return
        values = None
        if node.op_type == "Shape":
            values = _sizes(node, self.shape(node.input[0]))
        elif node.op_type == "Constant" and node.attribute[0].name == "value":
            values = numpy_helper.to_array(node.attribute[0].t)
        elif all(name in self._data for name in names):
            version = self._versions.get(node.domain, 1)
            call = onnx.NodeProto()
            call.CopyFrom(node)
            call.name = ""
            values = _evaluate(
                call.SerializeToString(deterministic=True),
                version,
                tuple((name, self._data[name].SerializeToString(deterministic=True)) for name in dict.fromkeys(names)),
            )
        if values is not None and values.size <= _SMALL:
            self._data[node.output[0]] = numpy_helper.from_array(values, node.output[0])
            self.types[node.output[0]] = onnx.helper.make_tensor_type_proto(
                self._data[node.output[0]].data_type, list(values.shape)
            )

    def _wrong_count(self, node: onnx.NodeProto) -> str | None:
        if node.op_type not in _SAME_COUNT or not node.input or not node.output:
            return None
        before, after = self.shape(node.input[0]), self.shape(node.output[0])
        if _count(before) is None or _count(after) is None or _count(before) == _count(after):
            return None
        return f"it makes {_shown(after)} of {_shown(before)}"

    def shape(self, name: str) -> Shape | None:
        kind = self.types.get(name)
        if kind is None or not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
            return None
        return tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in kind.tensor_type.shape.dim)


def _sizes(node: onnx.NodeProto, shape: Shape | None) -> Any | None:
    """Return what Shape gives, of which attributes may cut a piece."""
    if shape is None:
        return None
    cut = {attribute.name: attribute.i for attribute in node.attribute}
    piece = shape[cut.get("start", 0) : cut.get("end", len(shape))]
    return np.array(piece, dtype=np.int64) if all(isinstance(size, int) for size in piece) else None


@lru_cache(maxsize=4096)
def _evaluate(call: bytes, opset: int, inputs: tuple[tuple[str, bytes], ...]) -> Any | None:
    """Compute one node; graphs repeat the same small computations in every layer."""
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415  only graphs that compute with sizes

    node = onnx.NodeProto.FromString(call)
    feeds = {name: numpy_helper.to_array(onnx.TensorProto.FromString(raw)) for name, raw in inputs}
    if any(array.size > _SMALL for array in feeds.values()):
        return None
    with np.errstate(all="ignore"), suppress(Exception):  # it raises what it likes; then the value is not known
        (value,) = ReferenceEvaluator(node, opsets={node.domain: opset}).run(None, feeds)
        return value if isinstance(value, np.ndarray) else None
    return None


def _count(shape: Shape | None) -> int | None:
    sizes = [size for size in shape or () if isinstance(size, int)]
    return math.prod(sizes) if shape is not None and len(sizes) == len(shape) else None


def _shown(shape: Shape | None) -> str:
    return "[" + ", ".join(map(str, shape or ())) + "]"
