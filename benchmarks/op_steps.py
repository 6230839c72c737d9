"""Op steps fused into a model's session, against the same graph exported by hand: rows per second of processor time.

Pictures are cast, scaled and transposed, go through three convolutions, and the best two of ten scores are taken. Both
ways run as a pipeline of one step; the steps side by side, each line a session of its own, are shown beside them.
"""

import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from measure import describe_machine, interleaved
from onnx import TensorProto, helper, numpy_helper

from ortdeploy.manifest.loader import LoadOptions
from ortdeploy.pipelines.compose import compose
from ortdeploy.plan.steps import OpenSession, RunJob
from ortdeploy.planning.workflow import plan_manifests
from ortdeploy.runtime.protocol import Session
from ortdeploy.runtime.session import OrtRuntime
from ortdeploy.sessions.generated_models import make_model
from ortdeploy.sessions.opening import ModelOpener

ROWS, SIDE, CHANNELS = 8, 96, 16
ROUNDS, RUNS = 25, 20
STEPS = """\
      - {op: Cast, in: {input: $picture}, attributes: {to: float32}, out: numbers}
      - {op: Mul, in: {A: $numbers, B: 0.00392156862}, out: scaled}
      - {op: Transpose, in: {data: $scaled}, attributes: {perm: [0, 3, 1, 2]}, out: image}
      - {run: net, fuse: FUSE, in: {image: $image}, out: {scores: scores}}
      - {op: Softmax, in: {input: $scores}, attributes: {axis: 1}, out: shares}
      - {op: TopK, in: {X: $shares, K: [2]}, out: {Values: best, Indices: which}}"""
BY_HAND = "      - {run: hand, in: {picture: $picture}, out: {best: best, which: which}}"
MANIFEST = """\
version: 1
models: {MODELS}
pipelines:
  p:
    steps:
STEPS
    outputs: {best: $best, which: $which}
jobs: {run: {pipeline: p, input: {path: x.npy, columns: {picture: array}}, output: {path: out}, limits: {threads: 1}}}
"""


def make(folder: Path) -> None:
    """Write the network, the same with its steps around it, and data."""
    random = np.random.default_rng(0)
    sizes = (3, CHANNELS, CHANNELS, 10)
    nodes, weights, value = [], [], "image"
    for layer in range(3):
        kernel = random.standard_normal((sizes[layer + 1], sizes[layer], 3, 3)).astype(np.float32) / 10
        weights.append(numpy_helper.from_array(kernel, f"w{layer}"))
        nodes.append(helper.make_node("Conv", [value, f"w{layer}"], [f"c{layer}"], strides=[2, 2]))
        nodes.append(helper.make_node("Relu", [f"c{layer}"], [value := f"r{layer}"]))
    weights.append(numpy_helper.from_array(np.array([2, 3], np.int64), "axes"))
    nodes.append(helper.make_node("ReduceMean", [value, "axes"], ["scores"], keepdims=0))
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 10])
    save(folder / "net.onnx", nodes, [image], [scores], weights)
    constants = [
        numpy_helper.from_array(np.array(0.00392156862, np.float32), "factor"),
        numpy_helper.from_array(np.array([2], np.int64), "two"),
    ]
    before = [
        helper.make_node("Cast", ["picture"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["numbers", "factor"], ["scaled"]),
        helper.make_node("Transpose", ["scaled"], ["image"], perm=[0, 3, 1, 2]),
    ]
    after = [
        helper.make_node("Softmax", ["scores"], ["shares"], axis=1),
        helper.make_node("TopK", ["shares", "two"], ["best", "which"]),
    ]
    picture = helper.make_tensor_value_info("picture", TensorProto.UINT8, ["batch", SIDE, SIDE, 3])
    results = [
        helper.make_tensor_value_info(name, kind, ["batch", 2])
        for name, kind in (("best", TensorProto.FLOAT), ("which", TensorProto.INT64))
    ]
    save(folder / "hand.onnx", [*before, *nodes, *after], [picture], results, [*weights, *constants])
    np.save(folder / "x.npy", random.integers(0, 255, (ROWS, SIDE, SIDE, 3), dtype=np.uint8))


def save(path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: list[Any]) -> None:
    """Write a model of the operator set that op steps have."""
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)


def compose_pipeline(folder: Path, manifest: str) -> Session:
    """Plan a manifest with one pipeline, and open its sessions as apply does."""
    (folder / "m.yaml").write_text(manifest)
    planned = plan_manifests([str(folder / "m.yaml")], LoadOptions(), state_dir=None)
    (plan,) = planned.plans
    runtime = OrtRuntime(make_model=make_model)
    opener = ModelOpener(runtime=runtime, on_native_call=lambda _doing: None, native_text=lambda: "")
    opened = {
        step.session: opener.open_model(step, step.candidates) for step in plan.steps if isinstance(step, OpenSession)
    }
    pipeline = next(step.pipeline for step in plan.steps if isinstance(step, RunJob) and step.pipeline)
    return compose(pipeline, opened).sessions[0].session


def manifest(models: str, steps: str) -> str:
    """Return the manifest of some models and steps."""
    return MANIFEST.replace("MODELS", models).replace("STEPS", steps)


def seconds_of(session: Session, feeds: Mapping[str, np.ndarray[Any, Any]]) -> float:
    """Return the processor time of some runs: they have one thread, and others may use the machine too."""
    begin = time.thread_time()
    for _ in range(RUNS):
        session.run(["best", "which"], feeds, ())
    return time.thread_time() - begin


def main() -> None:
    """Measure and print."""
    print(describe_machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder)
        sessions = {
            "exported by hand": compose_pipeline(folder, manifest("hand: {path: hand.onnx}", BY_HAND)),
            "fused": compose_pipeline(folder, manifest("net: {path: net.onnx}", STEPS.replace("FUSE", "true"))),
            "side by side": compose_pipeline(folder, manifest("net: {path: net.onnx}", STEPS.replace("FUSE", "false"))),
        }
        feeds = {"picture": np.load(folder / "x.npy")}
        expected = sessions["exported by hand"].run(["best", "which"], feeds, ())
        for session in sessions.values():
            for value, other in zip(session.run(["best", "which"], feeds, ()), expected, strict=True):
                np.testing.assert_allclose(value, other, rtol=1e-4)
        rounds = interleaved({name: partial(seconds_of, one, feeds) for name, one in sessions.items()}, ROUNDS)
    for name in sessions:
        rate = ROWS * RUNS / rounds[name]
        print(f"{name:17} {rate:8.0f} rows/s  ratio {rounds.ratio('exported by hand', name):.3f}")


if __name__ == "__main__":
    main()
