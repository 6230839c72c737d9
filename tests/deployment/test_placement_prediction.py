"""The predicted placement against what ONNX Runtime records, on every model that the onnx package ships."""

from collections.abc import Iterator
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from onnx.backend.test.case.node import collect_testcases

from ortdeploy.deployment.placement_prediction import Prediction, predict_placement
from ortdeploy.facts.models import ModelFacts
from ortdeploy.graph.nodes import read_nodes
from ortdeploy.runtime.kernels import KnownKernels, known_attributes

CPU = "CPUExecutionProvider"
DATA = Path(onnx.__file__).parent / "backend/test/data"
SHIPPED = sorted(DATA.rglob("*.onnx"))
KERNELS = {CPU: KnownKernels({})[CPU]}
ATTRIBUTES = known_attributes()


def predict(model: onnx.ModelProto) -> Prediction:
    opsets = {opset.domain or "ai.onnx": opset.version for opset in model.opset_import}
    facts = ModelFacts(path="", opsets=opsets, nodes=read_nodes(model).nodes)
    prediction = predict_placement(facts, [CPU], KERNELS, ATTRIBUTES)
    assert prediction is not None
    return prediction


def recorded(model: bytes) -> int | None:
    """Nodes of a session without optimization; None where ONNX Runtime refuses the model."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    try:
        session = ort.InferenceSession(model, options, providers=[CPU], enable_fallback=0)
    except Exception:  # noqa: BLE001  every error of the binding is its own class
        return None
    return sum(len(part.get_nodes()) for part in session.get_provider_graph_assignment_info())


@pytest.mark.slow
def test_every_shipped_model_is_placed_as_predicted_node_for_node() -> None:
    assert len(SHIPPED) > 100
    placed = 0
    for path in SHIPPED:
        nodes = recorded(path.read_bytes())
        prediction = predict(onnx.load(str(path)))
        if nodes is not None:
            placed += 1
            assert (prediction.nodes.get(CPU, 0), prediction.impossible) == (nodes, ()), path
    assert placed > 100


def cases() -> Iterator[tuple[str, onnx.ModelProto]]:
    for case in collect_testcases(None):
        assert case.model is not None
        yield case.name, case.model


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # onnx's own cases overflow on purpose
def test_no_operator_that_runs_is_called_impossible() -> None:
    """Of the onnx package's cases for single operators, those that are called impossible are refused, every one."""
    impossible = 0
    for name, model in cases():
        raw = model.SerializeToString()
        if predict(model).impossible:
            impossible += 1
            assert recorded(raw) is None, name
    assert impossible > 50


@pytest.mark.parametrize(
    "chain", [["QNNExecutionProvider", CPU], ["NopeExecutionProvider", CPU], ["DmlExecutionProvider"]]
)
def test_nothing_is_predicted_where_kernels_do_not_decide_or_are_not_known(chain: list[str]) -> None:
    assert predict_placement(ModelFacts(path=""), chain, KERNELS) is None


def test_azure_takes_no_node() -> None:
    assert predict_placement(ModelFacts(path=""), ["AzureExecutionProvider", CPU], KERNELS) == Prediction()


@pytest.mark.parametrize(("opset", "expandable"), [(24, True), (27, False)])
def test_a_function_whose_body_has_other_versions_is_not_put_in(opset: int, expandable: bool) -> None:
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Swish", ["x"], ["y"])],
        "g",
        [value("x", onnx.TensorProto.FLOAT, [2])],
        [value("y", onnx.TensorProto.FLOAT, [2])],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    (node,) = read_nodes(model).nodes
    assert node.expandable is expandable


def test_operators_without_a_kernel_for_float16_compute_in_float32() -> None:
    nodes = [
        helper.make_node("Gather", ["x", "i"], ["a"]),
        helper.make_node("Exp", ["a"], ["b"]),
        helper.make_node("Exp", ["b"], ["c"]),
        helper.make_node("Cast", ["c"], ["y"], to=TensorProto.FLOAT),
    ]
    values = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT16, ["n", 4]),
        helper.make_tensor_value_info("i", TensorProto.INT64, ["n"]),
    ]
    graph = helper.make_graph(nodes, "g", values, [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])])
    prediction = predict(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    assert prediction.nodes == {CPU: 4}
