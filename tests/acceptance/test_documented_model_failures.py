"""The documented failures of models, inputs and outputs, from users' issue threads, one by one.

Each is made for real, wrong and right: wrong, the plan refuses or warns of it by the rule named, at a line and with a
remedy; right, the plan has nothing to say and the job runs.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import Cli
from onnx import TensorProto, helper
from support.models import gather_model, save_model, scale_model

X = np.ones((6, 4), np.float32)
FLOAT = TensorProto.FLOAT


def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, inputs.split(), outputs.split(), **attributes)


def plain(folder: Path, *, opset: int = 17, ir_version: int = 8, kind: int = FLOAT, **more: Any) -> None:
    """y = x + x."""
    save_model(
        folder / "m.onnx",
        [node("Add", "x x", "y")],
        {"x": (kind, ["batch", 4])},
        {"y": (kind, ["batch", 4])},
        opset=opset,
        ir_version=ir_version,
        **more,
    )


def external(folder: Path, location: str, size: int) -> None:
    """A weight of 16 bytes beside the model."""
    scale_model(folder / "m.onnx")
    model = onnx.load(folder / "m.onnx")
    tensor = TensorProto(name="factor", data_type=FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    model.graph.initializer[0].CopyFrom(tensor)
    (folder / "w.bin").write_bytes(np.ones(4, np.float32).tobytes()[:size])
    onnx.save(model, folder / "m.onnx")


def conv(folder: Path) -> None:
    save_model(
        folder / "m.onnx",
        [node("Conv", "x w", "y")],
        {"x": (FLOAT, ["n", "c", "h", "w_"])},
        {"y": (FLOAT, ["n", 2, None, None])},
        {"w": np.ones((2, 3, 1, 1), np.float32)},
    )


def two_inputs(folder: Path) -> None:
    save_model(
        folder / "m.onnx",
        [node("Add", "a b", "y")],
        {"a": (FLOAT, ["n", "size"]), "b": (FLOAT, ["n", "size"])},
        {"y": (FLOAT, ["n", "size"])},
    )


def compiled(folder: Path, *, beside: bool) -> None:
    context = node(
        "EPContext",
        "x",
        "y",
        domain="com.microsoft",
        embed_mode=0,
        ep_cache_context="m.bin",
        source="QNNExecutionProvider",
    )
    save_model(folder / "m.onnx", [context], {"x": (FLOAT, [1, 4])}, {"y": (FLOAT, [1, 4])})
    if beside:
        (folder / "m.bin").write_bytes(b"x")


def listed_initializer(folder: Path, ir_version: int) -> None:
    """y = x * w, where w is an initializer that is listed as an input too, as old exporters do."""
    save_model(
        folder / "m.onnx",
        [node("Mul", "x w", "y")],
        {"x": (FLOAT, ["batch", 4]), "w": (FLOAT, [4])},
        {"y": (FLOAT, ["batch", 4])},
        {"w": np.ones(4, np.float32)},
        ir_version=ir_version,
    )


def maps(folder: Path) -> None:
    nodes = [
        node("Identity", "x", "raw"),
        node("ZipMap", "raw", "y", domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2, 3]),
    ]
    kind = helper.make_sequence_type_proto(
        helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(FLOAT, []))
    )
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", FLOAT, ["batch", 4])],
        [helper.make_value_info("y", kind), helper.make_tensor_value_info("raw", FLOAT, ["batch", 4])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / "m.onnx")


Build = Callable[[Path], object]


def data(**arrays: np.ndarray) -> Build:
    return lambda folder: np.savez(folder / "x.npz", **arrays)  # type: ignore[arg-type]  # numpy's stub of savez


def text(content: str) -> Build:
    return lambda folder: (folder / "x.csv").write_text(content)


ROWS = data(x=X)
CSV = "x.csv, columns: {x: [a, b, c, d]}"

# number, what is made wrong, its rows, job (input, rest), rule; the same right
Case = tuple[str, Build, Build, tuple[str, str], str, Build, Build, tuple[str, str]]
CASES: list[Case] = [
    ("F43", lambda f: plain(f, opset=99), ROWS, ("", ""), "too-new-model", plain, ROWS, ("", "")),
    ("F43", lambda f: plain(f, ir_version=99), ROWS, ("", ""), "too-new-model", plain, ROWS, ("", "")),
    ("F44", lambda f: external(f, "gone.bin", 16), ROWS, ("", ""), "unreadable-model", lambda f: external(f, "w.bin", 16), ROWS, ("", "")),
    ("F44", lambda f: external(f, "../w.bin", 16), ROWS, ("", ""), "unreadable-model", lambda f: external(f, "./w.bin", 16), ROWS, ("", "")),
    ("F44", lambda f: external(f, "w.bin", 12), ROWS, ("", ""), "unreadable-model", lambda f: external(f, "w.bin", 16), ROWS, ("", "")),
    ("F45", lambda f: (f / "m.onnx").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 9\n"), ROWS, ("", ""), "unreadable-model", plain, ROWS, ("", "")),
    ("F45", lambda f: (f / "m.onnx").touch(), ROWS, ("", ""), "unreadable-model", plain, ROWS, ("", "")),
    ("F46", lambda f: save_model(f / "m.onnx", [node("Shine", "x", "y", domain="com.acme")], {"x": (FLOAT, ["n", 4])}, {"y": (FLOAT, ["n", 4])}), ROWS, ("", ""), "unsupported-operator", plain, ROWS, ("", "")),
    ("F47", lambda f: plain(f, kind=TensorProto.BFLOAT16, opset=22, ir_version=10), ROWS, ("", "prepare: {x: [{cast: bfloat16}]}"), "unsupported-operator", lambda f: plain(f, kind=TensorProto.FLOAT16), ROWS, ("", "prepare: {x: [{cast: float16}]}")),
    ("F50", lambda f: compiled(f, beside=True), data(x=X[:1]), ("", ""), "compiled-elsewhere", plain, ROWS, ("", "")),
    ("F50", lambda f: compiled(f, beside=False), data(x=X[:1]), ("", ""), "unreadable-model", plain, ROWS, ("", "")),
    ("F52", lambda f: listed_initializer(f, 3), data(x=X, w=X), ("columns: {w: w}", ""), "unknown-tensor", lambda f: listed_initializer(f, 3), ROWS, ("", "")),
    ("F53", lambda f: scale_model(f / "m.onnx", batch=2), ROWS, ("", "batch: {size: 3}"), "fixed-batch-mismatch", lambda f: scale_model(f / "m.onnx", batch=2), ROWS, ("", "batch: {size: 2}")),
    ("F53", plain, data(x=np.ones((6, 2, 2), np.float32)), ("", ""), "input-shape-mismatch", plain, data(x=np.ones((6, 2, 2), np.float32)), ("", "prepare: {x: [{flatten: true}]}")),
    ("F54", conv, data(x=np.ones((6, 8, 8, 3), np.float32)), ("", ""), "input-shape-mismatch", conv, data(x=np.ones((6, 8, 8, 3), np.float32)), ("", "prepare: {x: [{layout: NCHW, from: NHWC}]}")),
    ("F54", plain, data(x=np.ones((6, 5), np.float32)), ("", ""), "input-shape-mismatch", plain, ROWS, ("", "")),
    ("F55", plain, data(x=X.astype(np.float64)), ("", ""), "input-type-mismatch", plain, data(x=X.astype(np.float64)), ("", "prepare: {x: [{cast: float32}]}")),
    ("F55", plain, data(x=X.astype(np.uint8)), ("", ""), "input-type-mismatch", plain, data(x=X.astype(np.uint8)), ("", "prepare: {x: [{scale: 1}]}")),
    ("F56", two_inputs, data(a=X, c=X), ("", ""), "missing-column", two_inputs, data(a=X, c=X), ("columns: {b: c}", "")),
    ("F56", plain, data(x=X), ("columns: {z: x}", ""), "unknown-tensor", plain, data(z=X), ("columns: {x: z}", "")),
    ("F57", two_inputs, data(a=X, b=X[:, :2]), ("", ""), "input-shape-mismatch", two_inputs, data(a=X, b=X), ("", "")),
    ("F59", maps, ROWS, ("", "FORMAT: npz"), "unsupported-tensor", maps, ROWS, ("", "")),
    ("F62", plain, data(x=X[:0]), ("", ""), "empty-input", plain, data(x=X[:1]), ("", "")),
    ("F62", lambda f: scale_model(f / "m.onnx", batch=0), ROWS, ("", ""), "fixed-batch-mismatch", plain, ROWS, ("", "")),
    ("F63", plain, data(x=X.astype(">f8")), ("", ""), "input-type-mismatch", plain, data(x=np.asfortranarray(X.astype(">f4"))), ("", "")),
    ("F77", plain, text("a,b,c,d\n1,2,,4\n1,n/a,3,4\n"), (CSV, ""), "unusable-rows", plain, text("a,b,c,d\n1,2,,4\n1,7,3,4\n"), (f"{CSV}, missing: {{c: 0}}", "")),
    ("F77", plain, data(x=np.full((6, 4), np.nan, np.float32)), ("", ""), "not-finite-rows", plain, data(x=np.full((6, 4), np.nan, np.float32)), ("", "errors: {on_nan: skip}")),
    ("F77", lambda f: gather_model(f / "m.onnx"), data(index=np.array([10, 11])), ("", ""), "unusable-rows", lambda f: gather_model(f / "m.onnx"), data(index=np.array([0, 9])), ("", "")),
]  # fmt: skip


def make(folder: Path, model: Build, rows: Build, job: tuple[str, str]) -> Path:
    folder.mkdir(exist_ok=True)
    model(folder)
    rows(folder)
    source, rest = job
    form = "npz" if rest.startswith("FORMAT") else "jsonl"
    path = source if source.startswith("x.csv") else f"x.npz{', ' if source else ''}{source}"
    lines = [
        "version: 1",
        "models: {m: {path: m.onnx}}",
        "jobs:",
        "  run:",
        "    model: m",
        f"    input: {{path: {path}}}",
        *([] if form == "npz" or not rest else [f"    {rest}"]),
        f"    output: {{path: out, format: {form}}}",
    ]
    (folder / "m.yaml").write_text("\n".join([*lines, ""]))
    return folder / "m.yaml"


@pytest.mark.quick(*range(0, 28, 5))
@pytest.mark.parametrize("case", CASES, ids=[f"{case[0]}-{case[4]}-{index}" for index, case in enumerate(CASES)])
def test_it_is_said_when_wrong_and_runs_when_right(cli: Cli, tmp_path: Path, case: Case) -> None:
    _, model, rows, job, rule, right_model, right_rows, right_job = case
    found = cli("plan", make(tmp_path / "wrong", model, rows, job), "--format", "json").json["diagnostics"]
    said = {one["rule"]: one for one in found}
    assert rule in said, found
    assert said[rule]["line"] > 1
    assert len(said[rule]["detail"]) > 30
    manifest = make(tmp_path / "right", right_model, right_rows, right_job)
    assert cli("plan", manifest, "--format", "json").json["diagnostics"] == []
    applied = cli("apply", manifest, "-q")
    assert applied.code == 0, applied.out
    report = json.loads((tmp_path / "right/out/_run.json").read_text())
    assert report["rows"]["committed"] + report["rows"]["skipped"] == report["rows"]["input"] > 0


def test_every_number_is_tried_here_or_elsewhere() -> None:
    """F48 depends on the processor: tests/rules/cases/saturating-int8."""
    numbers = "43 44 45 46 47 50 52 53 54 55 56 57 59 62 63 77"
    assert {case[0] for case in CASES} == {f"F{number}" for number in numbers.split()}
