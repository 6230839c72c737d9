"""Makes the face of a model: a graph that takes and gives what the model does, and computes nothing."""

import onnx
from onnx import helper

from ortdeploy.facts.models import ModelFacts, ValueFacts
from ortdeploy.tensors.types import ELEMENT_NUMBERS

_IR_VERSION, _OPSET = 8, 17


def face_of(model: ModelFacts) -> bytes:
    """Return the face of a model whose values are tensors; sizes that are open are 1 in what it gives."""
    outputs = [one for one in model.outputs if one.tensor.dtype is not None]
    graph = helper.make_graph(
        [node for one in outputs for node in _made(one)],
        "face",
        [
            helper.make_tensor_value_info(one.name, ELEMENT_NUMBERS[one.tensor.dtype], one.tensor.shape)
            for one in model.inputs
            if one.tensor.dtype is not None
        ],
        [onnx.ValueInfoProto(name=one.name) for one in outputs],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
    return made.SerializeToString()


def _made(value: ValueFacts) -> list[onnx.NodeProto]:
    sizes = [size if isinstance(size, int) else 1 for size in value.tensor.shape or ()]
    kind = ELEMENT_NUMBERS[value.tensor.dtype or ""]
    return [
        helper.make_node("Constant", [], [f"{value.name} sizes"], value_ints=sizes),
        helper.make_node("ConstantOfShape", [f"{value.name} sizes"], [f"{value.name} zeros"]),
        helper.make_node(
            "Cast", [f"{value.name} zeros"], [value.name], to=kind
        ),  # of each type, as the one before is not
    ]
