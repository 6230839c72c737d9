"""Op steps as graphs: what they compute is what onnx's reference computes one by one; what cannot be done is refused."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from support.effort import effort

from ortdeploy.deployment.op_names import OpStepError
from ortdeploy.deployment.op_steps import OpStep, type_op
from ortdeploy.graph.op_model import op_model
from ortdeploy.graph.operators import Operators
from ortdeploy.manifest.op_steps import read_op
from ortdeploy.runtime.operators import other_operators
from ortdeploy.tensors.types import ROWS, TensorType

OPERATORS = Operators()
all_operators = cache(lambda: Operators(other_operators()))
AT = ("pipelines", "p", "steps", 0)

Array = np.ndarray[Any, Any]
Step = dict[str, Any]


def join(step: Step, types: Mapping[str, TensorType], before: OpStep | None = None) -> OpStep:
    whole = before.whole if before else frozenset()
    return type_op(read_op(step, AT), types, OPERATORS, before, whole)


def run(step: OpStep, feeds: Mapping[str, Array]) -> dict[str, Array]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    model = op_model(step.graph).SerializeToString()
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in step.graph.outputs]
    wanted = {value.name for value in step.graph.inputs}
    found = session.run(names, {name: array for name, array in feeds.items() if name in wanted})
    return dict(zip(names, found, strict=True))


def reference(step: Step, values: Mapping[str, Array], outputs: list[str]) -> list[Array]:
    """Run one operator by onnx's reference implementation: from what is written, without ortdeploy."""
    inputs: list[str] = []
    constants: list[TensorProto] = []
    fed: dict[str, Array] = {}
    first = next(values[one[1:]] for some in step["in"].values() for one in _listed(some) if _is_wire(one))
    for some in step["in"].values():
        for one in _listed(some):
            if _is_wire(one):
                inputs.append(one[1:])
                fed[one[1:]] = values[one[1:]]
            else:
                dtype = np.int64 if np.asarray(one).dtype == np.int64 and step["op"] not in SAME_TYPE else first.dtype
                inputs.append(f"k{len(constants)}")
                constants.append(numpy_helper.from_array(np.array(one, dtype), inputs[-1]))
    node = helper.make_node(step["op"], inputs, outputs, **step.get("attributes", {}))
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in fed.items()
    ]
    results = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in outputs]
    graph = helper.make_graph([node], "one", infos, results, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return list(ReferenceEvaluator(model).run(None, fed))


SAME_TYPE = {"Add", "Sub", "Mul", "Max", "Min"}


def _is_wire(one: Any) -> bool:
    return isinstance(one, str) and one.startswith("$")


def _listed(some: Any) -> list[Any]:
    return some if isinstance(some, list) and any(_is_wire(one) for one in some) else [some]


@st.composite
def next_step(draw: st.DrawFn, values: Mapping[str, Array], result: str) -> Step:
    """A step on one or two of some values, whose rows stay rows."""
    name = draw(st.sampled_from(sorted(values)))
    array = values[name]
    rank, wire = array.ndim, f"${name}"
    axis = draw(st.integers(1, rank - 1)) if rank > 1 else None
    steps: list[Step] = [{"op": op, "in": {"X": wire}} for op in ("Relu", "Abs", "Neg")] + [
        {"op": "Sigmoid", "in": {"X": wire}},
        {"op": "Tanh", "in": {"input": wire}},
        {"op": "Add", "in": {"A": wire, "B": draw(st.sampled_from([2, 0.5, -1]))}},
        {"op": "Mul", "in": {"A": draw(st.sampled_from([3, 0.25])), "B": wire}},
        {"op": "Max", "in": {"data_0": [wire, 0.125]}},
        {"op": "Clip", "in": {"input": wire, "min": -0.5, "max": 0.5}},
        {"op": "Sub", "in": {"A": wire, "B": wire}},
    ]
    if axis is not None:
        size = array.shape[axis]
        order = [0, *draw(st.permutations(range(1, rank)))]
        steps += [
            {"op": "Transpose", "in": {"data": wire}, "attributes": {"perm": order}},
            {"op": "Softmax", "in": {"input": wire}, "attributes": {"axis": axis}},
            {"op": "ReduceSum", "in": {"data": wire, "axes": [axis]}, "attributes": {"keepdims": 0}},
            {"op": "ReduceMax", "in": {"data": wire, "axes": [axis - rank]}, "attributes": {"keepdims": 1}},
            {"op": "Concat", "in": {"inputs": [wire, wire]}, "attributes": {"axis": axis}},
            {"op": "Gather", "in": {"data": wire, "indices": [size - 1, 0]}, "attributes": {"axis": axis}},
            {"op": "Slice", "in": {"data": wire, "starts": [0], "ends": [max(1, size - 1)], "axes": [axis]}},
            {"op": "Reshape", "in": {"data": wire, "shape": [0, -1]}},
            {"op": "Unsqueeze", "in": {"data": wire, "axes": [axis]}},
            {"op": "CumSum", "in": {"x": wire, "axis": axis}},
        ]
    return {**draw(st.sampled_from(steps)), "out": result}


@settings(max_examples=effort(15, 60), deadline=None)
@given(st.data())
def test_a_graph_of_steps_computes_what_its_operators_compute_one_by_one(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=2))
    rows = data.draw(st.integers(1, 5))
    start = np.random.default_rng(rows).standard_normal((rows, *sizes)).astype(np.float32)
    values, types = {"x": start}, {"x": TensorType("float32", (ROWS, *sizes))}
    line = None
    for index in range(data.draw(st.integers(1, 6))):
        name = f"v{index}"
        step = data.draw(next_step(values, name))
        (values[name],) = reference(step, values, [name])
        line = join(step, types, line)
        types |= line.made
        shape = types[name].shape
        assert shape is not None
        assert shape[0] == ROWS
        assert all(size in {None, real} for size, real in zip(shape[1:], values[name].shape[1:], strict=True))
        assert types[name].dtype == values[name].dtype.name
    assert line is not None
    for name, found in run(line, {"x": start}).items():
        np.testing.assert_allclose(found, values[name], rtol=1e-4, atol=1e-5)


OF_A_ROW: list[Step] = [
    {"op": "Softmax", "in": {"input": "$x"}, "attributes": {"axis": 0}},
    {"op": "NonZero", "in": {"X": "$x"}},
    {"op": "ReduceMean", "in": {"data": "$x", "axes": [0]}, "attributes": {"keepdims": 0}},
    {"op": "Transpose", "in": {"data": "$x"}, "attributes": {"perm": [1, 0]}},
    {"op": "Unique", "in": {"X": "$x"}},
]


@pytest.mark.parametrize("step", OF_A_ROW, ids=lambda step: step["op"])
def test_by_row_an_operator_sees_one_row_without_the_axis_of_the_rows(step: Step) -> None:
    rows = np.random.default_rng(0).standard_normal((3, 4, 2)).astype(np.float32)
    joined = join({**step, "by_row": True, "out": "y"}, {"x": TensorType("float32", (ROWS, 4, 2))})
    shape = joined.made["y"].shape
    assert shape is None or shape[0] == ROWS
    for row in rows:
        (expected,) = reference(step, {"x": row}, ["y"])
        np.testing.assert_allclose(run(joined, {"x": row})["y"], expected, rtol=1e-5)


def test_outputs_that_nobody_names_are_not_given() -> None:
    types = {"x": TensorType("float32", (ROWS, 6))}
    joined = join({"op": "TopK", "in": {"X": "$x", "K": [2]}, "out": {"Indices": "which"}}, types)
    found = run(joined, {"x": np.array([[3, 1, 2, 9, 0, 4]], np.float32)})
    assert {name: array.tolist() for name, array in found.items()} == {"which": [[3, 5]]}


def test_an_optional_input_in_the_middle_is_left_out_by_name() -> None:
    types = {"x": TensorType("float32", (ROWS, 1, 2, 2))}
    attributes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}
    step = {"op": "Resize", "in": {"X": "$x", "scales": [1, 1, 2.0, 2]}, "attributes": attributes, "out": "y"}
    joined = join(step, types)
    assert joined.graph.nodes[0].inputs == ("x", "", "y.scales")
    assert joined.made["y"] == TensorType("float32", (ROWS, 1, 4, 4))


@pytest.mark.parametrize(
    ("operator", "written", "dtype"),
    [
        ("Add", {"A": "$f16", "B": 1}, "float16"),
        ("Add", {"A": "$i32", "B": [1]}, "int32"),
        ("Where", {"condition": "$flag", "X": 1, "Y": 2}, "int64"),
        ("Where", {"condition": "$flag", "X": 1, "Y": 0.5}, None),
        ("Where", {"condition": "$flag", "X": 1.5, "Y": 2}, "float32"),
        ("Gather", {"data": [1.5, 2.5], "indices": "$i32"}, "float32"),
        ("Where", {"condition": "$flag", "X": "a", "Y": "b"}, "string"),
    ],
)
def test_constants_have_the_type_of_their_neighbours(
    operator: str, written: Mapping[str, Any], dtype: str | None
) -> None:
    types = {
        "f16": TensorType("float16", (ROWS, 2)),
        "i32": TensorType("int32", (ROWS, 2)),
        "flag": TensorType("bool", (ROWS, 2)),
    }
    step = {"op": operator, "in": written, "out": "y"}
    if dtype is None:
        with pytest.raises(OpStepError, match="is no int64"):
            join(step, types)
        return
    joined = join(step, types)
    assert joined.made["y"].dtype == dtype
    assert {constant.dtype for constant in joined.graph.constants} == {dtype}


RIGHT: list[Step] = [
    {"op": "Transpose", "in": {"data": "$x"}, "attributes": {"perm": [0, 2, 1]}, "out": "y"},
    {"op": "TopK", "in": {"X": "$x", "K": [2]}, "attributes": {"axis": -1}, "out": {"Values": "y", "Indices": "z"}},
    {"op": "Split", "in": {"input": "$x", "split": [1, 2]}, "attributes": {"axis": 1}, "out": {"outputs": ["y", "z"]}},
    {"op": "Concat", "in": {"inputs": ["$x", "$x"]}, "attributes": {"axis": 1}, "out": "y"},
    {"op": "Gelu", "domain": "com.microsoft", "in": {"X": "$x"}, "out": "y"},
    {
        "op": "LayerNormalization",
        "in": {"X": "$x", "Scale": [1, 1, 1, 1.5]},
        "attributes": {"epsilon": 0.1},
        "out": "y",
    },
    {"op": "Clip", "in": {"input": "$x", "min": 0}, "out": "y"},
    {"op": "MatMul", "in": {"A": "$x", "B": [[1.0], [2], [3], [4]]}, "out": "y"},
]


TAKES_TEXT = {"Concat", "Split", "Transpose"}


def _misspelt(draw: st.DrawFn, word: str) -> str:
    place = draw(st.integers(0, len(word)))
    return word[:place] + draw(st.sampled_from("qzQ")) + word[place:]


def _another(draw: st.DrawFn, mapping: dict[str, Any], change: str) -> dict[str, Any]:
    key = draw(st.sampled_from(sorted(mapping)))
    name = _misspelt(draw, key) if change == "misspelt" else key
    return {name if one == key else one: value for one, value in mapping.items()}


@st.composite
def wrong_step(draw: st.DrawFn) -> Step:
    """A right step with one thing wrong."""
    step = dict(draw(st.sampled_from(RIGHT)))
    ways = ["operator", "domain", "input", "more", "feeds nothing", "output"]
    ways += [] if step["op"] in TAKES_TEXT else ["type"]
    ways += ["attribute", "attribute type"] if "attributes" in step else []
    match draw(st.sampled_from(ways)):
        case "operator":
            step["op"] = _misspelt(draw, step["op"])
        case "domain":
            step["domain"] = _misspelt(draw, step.get("domain", "com.microsoft"))
        case "input":
            step["in"] = _another(draw, step["in"], "misspelt")
        case "more":
            step["attributes"] = {**step.get("attributes", {}), draw(st.sampled_from(["axe", "modus"])): 1}
        case "feeds nothing":
            step["in"] = dict.fromkeys(step["in"], draw(st.sampled_from([None, {"a": 1}])))
        case "type":
            step["in"] = {key: _with_text(one) for key, one in step["in"].items()}
        case "output":
            step["out"] = {_misspelt(draw, "Y"): "y"}
        case "attribute":
            step["attributes"] = _another(draw, step["attributes"], "misspelt")
        case _:
            step["attributes"] = dict.fromkeys(
                step["attributes"], draw(st.sampled_from(["text", {"a": 1}, [0.5, "b"]]))
            )
    return step


def _with_text(one: Any) -> Any:
    return [_with_text(item) for item in one] if isinstance(one, list) else "$words"


@settings(max_examples=effort(60, 200), deadline=None)
@given(wrong_step())
def test_a_wrong_step_is_refused_at_its_place(step: Step) -> None:
    types = {"x": TensorType("float32", (ROWS, 3, 4)), "words": TensorType("string", (ROWS, 3, 4))}
    with pytest.raises(OpStepError) as refused:
        type_op(read_op(step, AT), types, all_operators())
    detail, at = refused.value.detail, refused.value.at
    assert at[: len(AT)] == AT
    assert detail.endswith((".", "?"))
    found: Any = step
    for part in at[len(AT) :]:
        if isinstance(found, Mapping) and part not in found:
            assert part == at[-1]  # a key that is missing is said where it belongs
            break
        found = found[part]


@pytest.mark.parametrize("step", RIGHT, ids=lambda step: step["op"])
def test_the_right_steps_are_right(step: Step) -> None:
    types = {"x": TensorType("float32", (ROWS, 3, 4))}
    joined = type_op(read_op(step, AT), types, all_operators())
    values = {"x": np.ones((2, 3, 4), np.float32)}
    assert all(len(array) == 2 for array in run(joined, values).values())
