"""What ONNX Runtime refuses for types, attributes, functions or kernels, plan refuses, with the node; all else passes."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from conftest import Cli
from msgspec.structs import replace
from onnx import TensorProto, helper
from support.models import scale_model

from ortdeploy.facts.models import HOLE
from ortdeploy.facts.preflight import Opening
from ortdeploy.graph.model import read_model
from ortdeploy.process.child import Answer
from ortdeploy.runtime import trial_opening
from ortdeploy.runtime.trial_opening import TrialRequest, try_to_open

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16
X = {"x": FLOAT}


def node(operator: str, inputs: str, outputs: str, name: str = "", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, inputs.split(), outputs.split(), name=name, **attributes)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, int] | None = None,
    kind: int = FLOAT,
    functions: Sequence[Any] = (),
    opset: int = 22,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(name, one, ["n", 4]) for name, one in (inputs or X).items()],
        [helper.make_tensor_value_info("y", kind, None)],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions)


def branch(kind: int) -> onnx.GraphProto:
    cast = node("Cast", "x", "b", "inside", to=kind)
    return helper.make_graph(
        [cast, node("Add", "b x", "c", "deep")], "b", [], [helper.make_tensor_value_info("c", kind, None)]
    )


def function(operator: str, **attributes: Any) -> onnx.FunctionProto:
    return helper.make_function(
        "own", "F", ["a"], ["b"], [node(operator, "a", "b", "body", **attributes)], [helper.make_opsetid("", 22)]
    )


CONDITION = node("Constant", "", "go", value=helper.make_tensor("v", TensorProto.BOOL, [], [True]))

REFUSED: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "two types in one Add": (lambda: model([node("Add", "x h", "y", "sum")], {"x": FLOAT, "h": HALF}), "sum"),
    "a node without a name": (lambda: model([node("Add", "x h", "y")], {"x": FLOAT, "h": HALF}), "makes y"),
    "a declared output of another type": (lambda: model([node("Relu", "x", "y", "relu")], kind=HALF), "y"),
    "a missing attribute": (lambda: model([node("Concat", "x x", "y", "join")]), "join"),
    "an unknown attribute": (lambda: model([node("Relu", "x", "y", "relu", speed=3)]), "speed"),
    "an attribute of another kind": (lambda: model([node("Softmax", "x", "y", "soft", axis="last")]), "axis"),
    "too few inputs": (lambda: model([node("Add", "x", "y", "sum")]), "sum"),
    "too many inputs": (lambda: model([node("Relu", "x x", "y", "relu")]), "relu"),
    "an input that nothing makes": (lambda: model([node("Add", "x lost", "y", "sum")]), "lost"),
    "an operator that is not there": (lambda: model([node("Reluu", "x", "y", "relu")]), "relu"),
    "an operator of a later set": (lambda: model([node("Gelu", "x", "y", "gelu")], opset=17), "gelu"),
    "a type without a kernel": (
        lambda: model([node("Erf", "x", "y", "erf")], {"x": TensorProto.BFLOAT16}, TensorProto.BFLOAT16),
        "erf",
    ),
    "a branch with two types": (
        lambda: model(
            [
                CONDITION,
                node("If", "go", "y", "if", then_branch=branch(HALF), else_branch=branch(HALF)),
            ]
        ),
        "deep",
    ),
    "a function of its own with an unknown operator": (
        lambda: model([node("F", "x", "y", "call", domain="own")], functions=[function("Reluu")]),
        "Reluu",
    ),
    "a function of its own with a wrong attribute": (
        lambda: model([node("F", "x", "y", "call", domain="own")], functions=[function("Relu", speed=3)]),
        "speed",
    ),
    "an unknown domain": (lambda: model([node("G", "x", "y", "own", domain="own")]), "own"),
}


def contributed() -> onnx.ModelProto:
    made = model([node("FastGelu", "x", "y", domain="com.microsoft")])
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return made


RUN: dict[str, Callable[[], onnx.ModelProto]] = {
    "one type": lambda: model([node("Add", "x x", "y")]),
    "float16 for float32": lambda: model([node("Add", "x x", "y")], {"x": HALF}, HALF),
    "a function of its own": lambda: model([node("F", "x", "y", domain="own")], functions=[function("Relu")]),
    "an operator of ONNX Runtime": contributed,
}


def write(folder: Path, made: onnx.ModelProto, more: str = "") -> Path:
    (folder / "m.onnx").write_bytes(made.SerializeToString())
    np.save(folder / "data.npy", np.ones((6, 4), np.float32))
    manifest = folder / "m.yaml"
    manifest.write_text(f"version: 1\nmodels:\n  m: {{path: m.onnx{more}}}\n")
    return manifest


def errors(cli: Cli, *arguments: str | Path) -> list[dict[str, Any]]:
    result = cli("plan", *arguments, "--format", "json")
    found = [one for one in result.json["diagnostics"] if one["severity"] == "error"]
    assert result.code == (1 if found else 0)
    return found


@pytest.mark.quick(
    "two types in one Add",
    "a missing attribute",
    "an input that nothing makes",
    "a type without a kernel",
    "a branch with two types",
    "a function of its own with a wrong attribute",
    "an unknown domain",
)
@pytest.mark.parametrize("what", REFUSED)
def test_plan_names_the_node_of_what_onnxruntime_refuses(cli: Cli, tmp_path: Path, what: str) -> None:
    make, named = REFUSED[what]
    made = make()
    with pytest.raises(Exception, match=r"ONNXRuntimeError"):
        ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = errors(cli, write(tmp_path, made))
    assert found["rule"] in {"refused-model", "unsupported-operator", "unreadable-model"}
    assert named in found["detail"], found["detail"]
    assert str(tmp_path) not in found["detail"]
    assert "ortdeploy-" not in found["detail"]


@pytest.mark.parametrize("what", RUN)
def test_what_runs_is_not_refused(cli: Cli, tmp_path: Path, what: str) -> None:
    made = RUN[what]()
    ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    assert not errors(cli, write(tmp_path, made))


def test_a_missing_kernel_of_the_cpu_is_nothing_to_a_chain_that_may_take_the_node(tmp_path: Path) -> None:
    made = model([node("Erf", "x", "y", "erf")], {"x": TensorProto.BFLOAT16}, TensorProto.BFLOAT16)
    types = model([node("Add", "x h", "y", "sum")], {"x": FLOAT, "h": HALF})
    own = model([node("G", "x", "y", "own", domain="own")])
    requests = []
    for number, one in enumerate((made, types, own)):
        path = tmp_path / f"{number}.onnx"
        path.write_bytes(one.SerializeToString())
        domains = sorted({inner.domain or "ai.onnx" for inner in one.graph.node})
        requests.append(TrialRequest(outline=str(path), file=str(path), on_cpu=False, domains=domains))
    kernels, kinds, domain = try_to_open(requests)
    assert kernels == Opening()
    assert kinds is not None
    assert "sum" in (kinds.refusal or "")
    assert domain is None


def test_of_another_version_only_onnx_itself_is_judged(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model([node("Add", "x h", "y", "sum")], {"x": FLOAT, "h": HALF}).SerializeToString())
    request = TrialRequest(outline=str(path), file=str(path), on_cpu=False, elsewhere="1.0")
    opsets: list[dict[str, int]] = [{"ai.onnx": 22}, {"ai.onnx": 999}, {"ai.onnx": 22, "com.microsoft": 1}]
    known, later, contributed_too = try_to_open([replace(request, opsets=one) for one in opsets])
    assert known is not None
    assert known.refusal
    assert (later, contributed_too) == (None, None)


def test_weights_are_neither_read_nor_needed(tmp_path: Path) -> None:
    """The outline of a model with 4 GB of external data is opened without them."""
    weight = TensorProto(name="w", data_type=FLOAT, dims=[4, 2**28], data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="w.bin")
    made = model([node("MatMul", "x w", "y", "product")])
    made.graph.initializer.append(weight)
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    with (tmp_path / "w.bin").open("wb") as hole:
        hole.truncate(2**32)
    facts = read_model(tmp_path / "m.onnx", "m.onnx", lambda _: "0")
    assert facts.outline is not None
    assert (facts.outline.largest, len(facts.outline.model) < 1000) == (2**32, True)
    outline = tmp_path / "outline.onnx"
    outline.write_bytes(facts.outline.model)
    (tmp_path / "w.bin").rename(tmp_path / HOLE)
    request = TrialRequest(outline=str(outline), file=str(tmp_path / "gone.onnx"), on_cpu=True)
    assert try_to_open([request]) == [Opening(with_kernels=True)]


def test_an_outline_keeps_the_nodes_and_small_constants(tmp_path: Path) -> None:
    made = model([node("Mul", "x k", "t"), node("MatMul", "t w", "y")])
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.array(3, np.float32), "k"))
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((4, 400), np.float32), "w"))
    write(tmp_path, made)
    facts = read_model(tmp_path / "m.onnx", "m.onnx")
    assert facts.outline is not None
    outline = onnx.ModelProto.FromString(facts.outline.model)
    assert [one.name for one in outline.graph.node] == ["without a name, makes t", "without a name, makes y"]
    assert [one.name for one in facts.nodes] == ["", ""]
    small, big = outline.graph.initializer
    assert small.raw_data
    assert (big.HasField("raw_data"), list(big.dims)) == (False, [4, 400])
    assert facts.outline.largest == 6400


def test_a_model_that_ends_the_process_is_refused_and_the_others_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second request's process is ended by SIGSEGV, first at the outline, then at the file."""
    ends: Iterator[tuple[list[dict[str, Any]], int]] = iter(
        [
            ([{"opening": {"with_kernels": True}}, {"doing": "outline"}], -11),
            ([{"doing": "file"}], -11),
            ([{"opening": {"refusal": "no"}}], 0),
        ]
    )
    asked = []

    def answer(_module: str, requests: list[dict[str, Any]], **_: float) -> Answer:
        asked.append([one["outline"] for one in requests])
        messages, code = next(ends)
        return Answer(messages=messages, code=code, late=False, printed="")

    monkeypatch.setattr(trial_opening, "can_fork", lambda: False)
    monkeypatch.setattr(trial_opening, "ask", answer)
    request = TrialRequest(outline="o", file="m.onnx", on_cpu=True)
    assert trial_opening.try_to_open([request] * 3) == [
        Opening(with_kernels=True),
        Opening(refusal="opening it ends the process with SIGSEGV"),
        Opening(refusal="no"),
    ]
    assert asked == [["o", "o", "o"], [None, "o"], ["o"]]


def test_a_process_that_ends_before_it_opens_anything_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_opening, "can_fork", lambda: False)
    monkeypatch.setattr("ortdeploy.process.child.child_command", lambda _module: ["/bin/sh", "-c", "kill -6 $$"])
    assert try_to_open([TrialRequest(outline="o", file="m.onnx", on_cpu=True)] * 2) == [None, None]


@pytest.mark.opens_models
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the child is a Python of its own")
def test_a_fork_that_a_model_ends_or_holds_up_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """One opens, one ends its process, one never answers."""

    def open_one(request: TrialRequest) -> Iterator[dict[str, Any]]:
        yield {"doing": "file"}
        if request.file == "ends":
            os.abort()
        if request.file == "holds up":
            signal.pause()
        yield {"opening": {"with_kernels": True}}

    monkeypatch.setattr(trial_opening, "_open", open_one)
    opens, ends, held = (TrialRequest(outline=None, file=name, on_cpu=True) for name in ("opens", "ends", "holds up"))
    refused = Opening(refusal="opening it ends the process with SIGABRT")
    found = trial_opening.try_to_open([opens, ends, opens])  # whose core a system may take a while to write
    assert found == [Opening(with_kernels=True), refused, Opening(with_kernels=True)]
    monkeypatch.setattr(trial_opening, "_SECONDS", 0.5)
    assert trial_opening.try_to_open([opens, held]) == [Opening(with_kernels=True), None]
    folder = TrialRequest(outline=None, file="holds up", on_cpu=True, writing={})
    assert trial_opening.try_to_open([folder, opens]) == [
        Opening(refusal="opening it takes more than 0.5 s"),
        Opening(with_kernels=True),
    ]


@pytest.mark.opens_models
def test_both_kinds_of_child_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scale_model(tmp_path / "good.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    requests = [
        TrialRequest(outline=None, file=str(tmp_path / name), on_cpu=True) for name in ("good.onnx", "bad.onnx")
    ]
    forked = trial_opening.try_to_open(requests)
    monkeypatch.setattr(trial_opening, "can_fork", lambda: False)
    assert trial_opening.try_to_open(requests) == forked
    assert [one is not None and one.refusal is None for one in forked] == [True, False]


@pytest.mark.opens_models
def test_what_was_opened_is_not_opened_again_while_nothing_changes(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("apply", deployment)
    cli("plan", deployment)
    asked: list[int] = []

    def count(requests: Sequence[TrialRequest]) -> list[Opening | None]:
        asked.append(len(requests))
        return try_to_open(requests)

    monkeypatch.setattr("ortdeploy.planning.preflight.openings.try_to_open", count)
    assert cli("plan", deployment).code == 0
    assert asked == []
    scale_model(deployment / "double.onnx", factor=3.0)
    cli("plan", deployment)
    assert asked == [1]
