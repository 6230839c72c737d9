"""Operators of onnxruntime-extensions as steps, where the package is there and where it is not."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import Cli
from onnx import TensorProto, helper

from ortdeploy.deployment.op_names import OpStepError, check_names, find_operator
from ortdeploy.graph.operators import Operators
from ortdeploy.manifest.op_steps import OpSpec, read_op
from ortdeploy.runtime.operators import extension_operators

REPLACE = (
    "{op: StringECMARegexReplace, domain: ai.onnx.contrib, in: {input: $text, pattern: ['[0-9]+'], rewrite: ['#']}, "
    "out: clean}"
)
MANIFEST = f"""\
version: 1
pipelines:
  p:
    steps:
      - {REPLACE}
      - {{op: StringMapping, domain: ai.onnx.contrib, in: {{input: $clean}}, attributes: {{map: "a #\\tA"}}, out: mapped}}
    outputs: {{clean: $clean, mapped: $mapped}}
jobs: {{r: {{pipeline: p, input: {{path: t.txt}}, output: {{path: out}}}}}}
"""


def test_operators_of_the_package_run_as_steps(tmp_path: Path, cli: Cli) -> None:
    pytest.importorskip("onnxruntime_extensions")
    (tmp_path / "m.yaml").write_text(MANIFEST)
    (tmp_path / "t.txt").write_text("a 12\nb 3 c 4\n")
    done = cli("apply", tmp_path / "m.yaml", "-q")
    assert done.code == 0, done.out + done.err
    rows = [json.loads(line) for line in (tmp_path / "out/part-00000000.jsonl").read_text().splitlines()]
    assert rows == [{"clean": "a #", "mapped": "A"}, {"clean": "b # c #", "mapped": "b # c #"}]


class CustomOp:
    """What the package has for each operator."""

    @classmethod
    def op_type(cls) -> str:
        return cls.__name__

    @staticmethod
    def get_inputs() -> list[object] | None:
        return None

    get_outputs = get_inputs


class Upper(CustomOp):
    """An operator of text."""

    @staticmethod
    def get_inputs() -> list[object]:
        return [helper.make_tensor_value_info("input", TensorProto.STRING, [None])]

    get_outputs = get_inputs


def spec(**more: object) -> OpSpec:
    return read_op({"op": "Upper", "domain": "ai.onnx.contrib", "in": {"input": "$x"}, "out": "y", **more}, ())


def test_inputs_are_those_that_the_package_tells_and_attributes_any(monkeypatch: pytest.MonkeyPatch) -> None:
    package = SimpleNamespace(_cuops=SimpleNamespace(CustomOp=CustomOp, Upper=Upper))
    monkeypatch.setitem(sys.modules, "onnxruntime_extensions", package)
    operators = Operators(extension_operators())
    facts = find_operator(spec(), operators)
    assert [(one.name, one.types) for one in facts.inputs] == [("input", ("string",))]
    check_names(spec(attributes={"locale": "de", "times": [1, 2.5], "flag": 1}), facts)
    with pytest.raises(OpStepError) as refused:
        check_names(spec(**{"in": {"inptu": "$x"}}), facts)
    assert 'Did you mean "input"?' in refused.value.detail


def test_the_package_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime_extensions", None)
    with pytest.raises(OpStepError) as refused:
        find_operator(spec(), Operators(extension_operators()))
    assert refused.value.detail.startswith("Operators of ai.onnx.contrib need onnxruntime-extensions")
