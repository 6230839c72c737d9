"""Writes the table of ONNX's operators that `validate` reads: python tests/support/operator_table.py."""

import json
from pathlib import Path
from typing import Any

from ortdeploy.facts.onnx_operators import MARKS, NO_TENSOR, REQUIRED, table_name
from ortdeploy.facts.operators import OperatorFacts, OperatorParameter
from ortdeploy.graph.operators import Operators
from ortdeploy.manifest.op_steps import ONNX, OPSET

FILE = Path(__file__).parent.parent.parent / "schemas" / table_name(ONNX, OPSET)


def render() -> str:
    operators = Operators()
    names = operators.names(ONNX, OPSET)
    found = {name: facts for name in names if (facts := operators.find(name, ONNX, OPSET)) is not None}
    lines = (f"{json.dumps(name)}: {json.dumps(_row(facts))}" for name, facts in sorted(found.items()))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _row(facts: OperatorFacts) -> dict[str, Any]:
    attributes = sorted(facts.attributes.items())
    return {
        "in": [_written(one) for one in facts.inputs],
        "out": [_written(one) for one in facts.outputs],
        "attributes": {name + (REQUIRED if one.required else ""): one.type for name, one in attributes},
        "least": facts.least_inputs,
    } | ({"draws": True} if facts.draws else {})


def _written(one: OperatorParameter) -> str:
    return f"{'' if one.types else NO_TENSOR}{one.name}{MARKS[one.option]}"


if __name__ == "__main__":
    FILE.write_text(render(), encoding="utf-8")
