"""A model that is read without the bytes of its big constants is the same in all else."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from onnx import TensorProto, helper, numpy_helper

from ortdeploy.graph import without_weights
from ortdeploy.graph.model import read_model
from ortdeploy.graph.skeleton import constant_size
from ortdeploy.graph.without_weights import load_without_weights

FLOAT = TensorProto.FLOAT
SHIPPED = sorted((Path(onnx.__file__).parent / "backend/test/data").rglob("*.onnx"))
BIG = 64


@pytest.fixture(autouse=True)
def all_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(without_weights, "_LARGE", 0)
    monkeypatch.setattr(without_weights, "_BIG", BIG)


def tensors(message: object) -> Iterator[TensorProto]:
    """Yield all constants of a message, at any depth."""
    if isinstance(message, TensorProto):
        yield message
    for field, value in message.ListFields():  # type: ignore[attr-defined]
        if field.message_type is not None:
            for one in value if isinstance(value, list) or hasattr(value, "append") else [value]:
                yield from tensors(one)


def without_numbers(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with the numbers of big initializers and values of Constant nodes removed."""
    _drop(model.graph, constants=model.ir_version >= 4)
    return model


def _drop(graph: onnx.GraphProto, *, constants: bool) -> None:
    for tensor in graph.initializer:
        _drop_numbers(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g") and node.op_type in {"If", "Loop", "Scan"}:
                _drop(attribute.g, constants=constants)
            if attribute.name == "value" and node.op_type == "Constant" and constants:
                _drop_numbers(attribute.t)


def _drop_numbers(tensor: TensorProto) -> None:
    size = constant_size(tensor) or 0
    if size > BIG and len(tensor.raw_data) == size:
        tensor.ClearField("raw_data")
    for name in ("float_data", "int32_data", "int64_data", "double_data", "uint64_data"):
        alone = TensorProto()
        getattr(alone, name).extend(getattr(tensor, name))
        if size > BIG and alone.ByteSize() > BIG + len(b"tn"):  # with its tag and its length
            tensor.ClearField(name)


def holders() -> onnx.ModelProto:
    """A model with constants in an initializer, a node, a branch of a branch, a function and a sparse one."""

    def matrix(name: str) -> TensorProto:
        return numpy_helper.from_array(np.arange(400, dtype=np.float32).reshape(20, 20), name)

    def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
        value = helper.make_tensor_value_info(nodes[-1].output[0], FLOAT, None)
        return helper.make_graph(list(nodes), name, [], [value], [matrix(f"{name} w")])

    inner = branch("inner", helper.make_node("MatMul", ["x", "inner w"], ["a"]))
    outer = branch("outer", helper.make_node("If", ["t"], ["b"], then_branch=inner, else_branch=inner))
    numbers = TensorProto(name="numbers", data_type=FLOAT, dims=[40], float_data=range(40))
    sparse = onnx.SparseTensorProto(values=matrix("values"), dims=[1000, 1000])
    nodes = [
        helper.make_node("Constant", [], ["c"], value=matrix("")),
        helper.make_node("If", ["t"], ["d"], then_branch=outer, else_branch=inner),
        helper.make_node("f", ["x"], ["y"], domain="own"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", FLOAT, ["n", 20]),
            helper.make_tensor_value_info("t", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [matrix("w"), numbers],
        doc_string="long text " * 50,
        sparse_initializer=[sparse],
    )
    function = helper.make_function(
        "own", "f", ["x"], ["y"],
        [helper.make_node("Constant", [], ["w"], value=matrix("")), helper.make_node("MatMul", ["x", "w"], ["y"])],
        [helper.make_opsetid("", 17)],
    )  # fmt: skip
    return helper.make_model(graph, functions=[function], opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_big_numbers_are_left_out_wherever_they_are(tmp_path: Path) -> None:
    model = holders()
    onnx.save(model, tmp_path / "m.onnx")
    loaded = load_without_weights(tmp_path / "m.onnx")
    left = sum(len(tensor.raw_data) + len(tensor.float_data) for tensor in tensors(loaded))
    assert left == 2 * 1600  # those of the function and of the sparse constant, which no outline moves
    assert loaded == without_numbers(model)


@pytest.mark.parametrize("version", [3, 4])
def test_values_of_constant_nodes_are_left_out_where_they_become_initializers(tmp_path: Path, version: int) -> None:
    nodes = [
        helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(np.eye(20, dtype=np.float32))),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(name, FLOAT, ["n", 20]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=version), tmp_path / "m.onnx"
    )
    (kept,) = tensors(load_without_weights(tmp_path / "m.onnx"))
    assert len(kept.raw_data) == (0 if version == 4 else 1600)


def test_a_model_has_the_same_facts_without_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(holders(), tmp_path / "m.onnx")
    facts = read_model(tmp_path / "m.onnx", "m")
    monkeypatch.setattr(without_weights, "_LARGE", 2**40)
    assert replace(read_model(tmp_path / "m.onnx", "m"), outline=None) == replace(facts, outline=None)


@pytest.mark.slow
def test_shipped_models_are_the_same_in_all_else() -> None:
    assert len(SHIPPED) > 100
    for path in SHIPPED:
        assert load_without_weights(path) == without_numbers(onnx.load(str(path))), path


@given(st.data())
def test_a_file_that_is_cut_off_or_damaged_is_refused_or_read_as_protobuf_reads_it(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(holders().SerializeToString())
    path = tmp_path_factory.mktemp("damaged") / "m.onnx"
    end = data.draw(st.integers(1, len(content)))
    place = data.draw(st.integers(0, end - 1))
    content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content[:end])
    try:
        whole: onnx.ModelProto | None = onnx.load(str(path), load_external_data=False)
    except DecodeError:
        whole = None
    try:
        loaded = load_without_weights(path)
    except DecodeError:
        return
    assert whole is not None
    assert loaded == without_numbers(whole)


def test_a_big_constant_whose_bytes_do_not_fit_its_shape_is_told(tmp_path: Path) -> None:
    model = holders()
    model.graph.initializer[0].dims[0] = 19
    onnx.save(model, tmp_path / "m.onnx")
    problem = read_model(tmp_path / "m.onnx", "m.onnx").problem
    assert problem is not None
    assert problem.kind == "missing-bytes"
    assert "the constant w has 1,600 bytes and its shape needs 1,520" in problem.detail
