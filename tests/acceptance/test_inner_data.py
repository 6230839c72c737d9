"""External data of tensors inside of nodes and functions: planned, hashed, kept and opened like that of the graph."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import Cli
from onnx import TensorProto, helper, numpy_helper
from support.models import loop_body

MANIFEST = """\
version: 1
models: {m: {path: m.onnx}}
jobs: {j: {model: m, input: {path: x.npy}, batch: {size: 4}, output: {path: out, format: jsonl}}}
"""
WEIGHTS = np.arange(16, dtype=np.float32).reshape(4, 4)
X = np.ones((10, 4), np.float32)


def value(name: str, shape: list[str | int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def weights(name: str = "w") -> TensorProto:
    """The weights, whose bytes are in a file beside the model."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=WEIGHTS.shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in (("location", "w.bin"), ("offset", "0"), ("length", str(WEIGHTS.nbytes))):
        tensor.external_data.add(key=key, value=text)
    return tensor


def model_of(nodes: list[onnx.NodeProto], constants: list[TensorProto], **more: object) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", [value("x", ["N", 4])], [value("y", ["N", 4])], constants)
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=8, **more)


def in_if() -> onnx.ModelProto:
    """The weights of one branch are in a file."""
    product, sum_ = helper.make_node("MatMul", ["x", "w"], ["t"]), helper.make_node("Add", ["x", "x"], ["e"])
    then = helper.make_graph([product], "then", [], [value("t", ["N", 4])], [weights()])
    other = helper.make_graph([sum_], "else", [], [value("e", ["N", 4])])
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    return model_of([node], [numpy_helper.from_array(np.array(True), "c")])


def in_loop() -> onnx.ModelProto:
    """The weights of a loop that runs once are in a file."""
    body = loop_body([helper.make_node("MatMul", ["state", "w"], ["next"])], 4, [weights()])
    node = helper.make_node("Loop", ["once", "c", "x"], ["y"], body=body)
    constants = [numpy_helper.from_array(np.array(1), "once"), numpy_helper.from_array(np.array(True), "c")]
    return model_of([node], constants)


def in_function() -> onnx.ModelProto:
    """The weights are the value of a Constant in a function of the model."""
    nodes = [helper.make_node("Constant", [], ["w"], value=weights()), helper.make_node("MatMul", ["a", "w"], ["b"])]
    function = helper.make_function("own", "Multiply", ["a"], ["b"], nodes, [helper.make_opsetid("", 17)])
    return model_of([helper.make_node("Multiply", ["x"], ["y"], domain="own")], [], functions=[function])


def in_constant() -> onnx.ModelProto:
    """The weights are the value of a Constant of the graph."""
    nodes = [helper.make_node("Constant", [], ["w"], value=weights()), helper.make_node("MatMul", ["x", "w"], ["y"])]
    return model_of(nodes, [])


def rows(folder: Path) -> list[list[float]]:
    (part,) = (folder / "out").glob("part-*.jsonl")
    lines = part.read_text().splitlines()
    return [json.loads(line)["y"] for line in lines]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "m.yaml").write_text(MANIFEST)
    np.save(folder / "x.npy", X)
    (folder / "w.bin").write_bytes(WEIGHTS.tobytes())
    return folder


def hard_link(folder: Path) -> None:
    os.link(folder / "w.bin", folder / "second")


def soft_link(folder: Path) -> None:
    (folder / "w.bin").rename(folder / "first")
    (folder / "w.bin").symlink_to("first")


@pytest.mark.quick("in_if-hard_link", "in_loop-soft_link", "in_function-None", "in_constant-None")
@pytest.mark.parametrize("link", [None, hard_link, soft_link], ids=lambda one: one and one.__name__)
@pytest.mark.parametrize("make", [in_if, in_loop, in_function, in_constant], ids=lambda one: one.__name__)
def test_what_plan_takes_apply_opens_from_copies_with_one_name(
    cli: Cli, site: Path, make: Callable[[], onnx.ModelProto], link: Callable[[Path], None] | None
) -> None:
    (site / "m.onnx").write_bytes(make().SerializeToString())
    if link is not None:
        link(site)
    planned = cli("plan", site / "m.yaml", "--format", "json")
    (opening,) = (one for one in planned.json["steps"] if one["step"] == "open-session")
    assert [one["name"] for one in opening["files"]] == ["m.onnx", "w.bin"]
    applied = cli("apply", site / "m.yaml")
    assert applied.code == 0, applied.out + applied.err
    assert rows(site) == (X @ WEIGHTS).tolist()
    kept = [
        path for path in (site / ".ortdeploy/store").rglob("*") if path.is_file() and "references" not in path.parts
    ]
    assert {path.name for path in kept} == {"m.onnx", "w.bin"}
    assert {path.stat().st_nlink for path in kept} == {1}


def test_changed_weights_of_a_function_are_another_model_and_old_copies_go(cli: Cli, site: Path) -> None:
    (site / "m.onnx").write_bytes(in_function().SerializeToString())
    assert cli("apply", site / "m.yaml").code == 0
    before = set((site / ".ortdeploy/store/single").iterdir())
    (site / "w.bin").write_bytes((2 * WEIGHTS).tobytes())
    refused = cli("apply", site / "m.yaml")
    assert refused.code == 1
    assert "--new-run" in refused.out + refused.err
    assert cli("apply", site / "m.yaml", "--new-run").code == 0
    assert rows(site) == (X @ (2 * WEIGHTS)).tolist()
    after = set((site / ".ortdeploy/store/single").iterdir())
    assert len(after) == 1
    assert not before & after
