"""The table of operators that `validate` reads, against onnx's own schemas."""

import pytest
from support.operator_table import FILE, render

from ortdeploy.deployment.op_names import OpStepError, check_names, find_operator
from ortdeploy.facts.onnx_operators import named_operators
from ortdeploy.graph.operators import Operators
from ortdeploy.manifest.op_steps import ONNX, OPSET, read_op

AT = ("pipelines", "p", "steps", 0)


def test_the_table_is_what_onnx_says() -> None:
    """If not: python tests/support/operator_table.py."""
    assert FILE.read_text(encoding="utf-8") == render()


@pytest.mark.parametrize("name", Operators().names(ONNX, OPSET))
def test_the_table_finds_what_onnx_finds(name: str) -> None:
    """What is read of a row of the table is what onnx's schema has, but for types and defaults."""
    known, named = Operators().find(name, ONNX, OPSET), named_operators(ONNX, OPSET).find(name, ONNX, OPSET)
    assert known is not None
    assert named is not None
    for ours, theirs in ((named.inputs, known.inputs), (named.outputs, known.outputs)):
        assert [(one.name, one.option, bool(one.types)) for one in ours] == [
            (one.name, one.option, bool(one.types)) for one in theirs
        ]
    attributes = {key: (one.type, one.required) for key, one in named.attributes.items()}
    assert attributes == {key: (one.type, one.required) for key, one in known.attributes.items()}
    assert (named.least_inputs, named.draws) == (known.least_inputs, known.draws)


@pytest.mark.parametrize(
    "step",
    [
        {"op": "Transposes", "in": {"data": "$x"}, "out": "y"},
        {"op": "Transpose", "in": {"dat": "$x"}, "out": "y"},
        {"op": "Transpose", "in": {"data": "$x"}, "attributes": {"prem": [0]}, "out": "y"},
        {"op": "TopK", "in": {"X": "$x", "K": [5]}, "out": {"Value": "y"}},
        {"op": "Concat", "in": {"inputs": "$x"}, "attributes": {"axis": 1}, "out": "y"},
        {"op": "SequenceAt", "in": {"input_sequence": "$x", "position": 0}, "out": "y"},
    ],
    ids=lambda step: step["op"],
)
def test_the_text_is_told_what_a_plan_would_be(step: dict[str, object]) -> None:
    said = []
    for operators in (Operators(), named_operators(ONNX, OPSET)):
        with pytest.raises(OpStepError) as refused:
            check_names(read_op(step, AT), find_operator(read_op(step, AT), operators))
        said.append((refused.value.detail, refused.value.at))
    assert said[0] == said[1]
