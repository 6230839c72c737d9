"""Makes an ONNX model of the op steps of a manifest."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ortdeploy.plan.op_graph import OpConstant, OpGraph, OpNode
from ortdeploy.plan.pipeline import PlannedValue
from ortdeploy.tensors.fed_values import as_array
from ortdeploy.tensors.types import ELEMENT_NUMBERS, ROWS, Dimension

ONNX = "ai.onnx"
_IR_VERSION = 10  # of operator set 21
_WRITTEN_OUT: Mapping[tuple[str, str], Mapping[str, Any]] = {(ONNX, "STFT"): {"onesided": 1}}
"""Defaults of attributes that are written out, because onnx infers shapes (1.23) as if they were others."""


def op_model(graph: OpGraph) -> onnx.ModelProto:
    """Return the model of a graph. The types of its outputs are left to whoever reads it."""
    made = helper.make_graph(
        [op_node(node, graph.opsets) for node in graph.nodes],
        "op steps",
        [op_value_info(value, value.name) for value in graph.inputs],
        [onnx.ValueInfoProto(name=value.name) for value in graph.outputs],
        [op_tensor(constant) for constant in graph.constants],
        value_info=[
            helper.make_tensor_value_info(name, ELEMENT_NUMBERS[dtype], None)
            for node in graph.nodes
            for name, dtype in zip(node.outputs, node.made, strict=False)
            if name and dtype
        ],
    )
    opsets = [helper.make_opsetid(onnx_domain(domain), version) for domain, version in graph.opsets.items()]
    return helper.make_model(made, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="ortdeploy")


def onnx_domain(domain: str) -> str:
    """Return a domain as models write it."""
    return "" if domain == ONNX else domain


def op_node(node: OpNode, opsets: Mapping[str, int]) -> onnx.NodeProto:
    """Return a node, named after its first result."""
    first = next(name for name in node.outputs if name)
    made = helper.make_node(node.operator, node.inputs, node.outputs, first, domain=onnx_domain(node.domain))
    types = _attribute_types(node, opsets)
    made.attribute.extend(
        helper.make_attribute(name, _attribute(value, types.get(name)), attr_type=types.get(name))
        for name, value in {**_WRITTEN_OUT.get((node.domain, node.operator), {}), **node.attributes}.items()
    )
    return made


def op_tensor(constant: OpConstant) -> onnx.TensorProto:
    """Return a constant as an initializer."""
    return numpy_helper.from_array(as_array(constant.content, constant.dtype, None), constant.name)


def _attribute_types(node: OpNode, opsets: Mapping[str, int]) -> dict[str, int]:
    """Return the types of an operator's attributes; none if onnx does not know it, and values tell."""
    try:
        schema = onnx.defs.get_schema(node.operator, opsets[node.domain], onnx_domain(node.domain))
    except onnx.defs.SchemaError:
        return {}
    attributes: Mapping[str, Any] = schema.attributes
    return {name: getattr(onnx.AttributeProto, one.type.name) for name, one in attributes.items()}


def _attribute(value: Any, kind: int | None) -> Any:
    if kind != onnx.AttributeProto.TENSOR:
        return value
    array = np.asarray(value)
    return numpy_helper.from_array(array.astype(np.float32) if array.dtype == np.float64 else array)


def op_value_info(value: PlannedValue, name: str) -> onnx.ValueInfoProto:
    """Return what a graph takes, by another name."""
    shape = None if value.shape is None else [_dimension(size) for size in value.shape]
    return helper.make_tensor_value_info(name, ELEMENT_NUMBERS[value.dtype or "float32"], shape)


def _dimension(size: Dimension) -> Dimension:
    """Return a size as a model has it. Only the rows keep their name: others were solved, or are of other models."""
    return size if isinstance(size, int) or size == ROWS else None
