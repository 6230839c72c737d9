"""Windows over a row, with state, against the same loop over `session.run` by hand, in windows per second.

Time is that of the processor. A network takes what a voice detector takes: a window of 576 samples goes through a dense
layer and an LSTM, whose state goes from window to window of a row. Rows run one at a time, as a stream does. The state
is handed on with its rows in front, where the graph names them, or whole, where it has one row alone.
"""

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from measure import describe_machine, interleaved
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession
from op_steps import compose_pipeline

from ortdeploy.runtime.protocol import Session

NEW, CONTEXT, WINDOWS, HIDDEN = 512, 64, 500, 128
ROUNDS = 25
MANIFEST = """\
version: 1
models: {vad: {path: vad.onnx, session: {intra_op_num_threads: 1}}}
pipelines:
  listen:
    steps:
      - {do: windows, in: {x: $samples, size: 512, context: 64}, out: [w, start]}
      - each: $w
        as: x
        state: {h: $h_after}
        steps:
          - {run: vad, in: {x: $x, h: $h}, out: {y: y, h_after: h_after}}
        collect: {y: speech}
    outputs: {speech: $speech}
jobs: {run: {pipeline: listen, input: {path: x.npy, columns: {samples: array}}, output: {path: out}}}
"""


def make(folder: Path, rows: int | str) -> None:
    """Write a network with so many rows, and data: from x [rows, 576] and h [2, rows, 128], y [rows, 1] and h."""
    random = np.random.default_rng(0)
    weights = {
        "dense": random.standard_normal((CONTEXT + NEW, HIDDEN)) / 24,
        "w": random.standard_normal((1, 4 * HIDDEN, HIDDEN)) / 12,
        "r": random.standard_normal((1, 4 * HIDDEN, HIDDEN)) / 12,
        "out": random.standard_normal((HIDDEN, 1)) / 12,
    }
    nodes = [
        helper.make_node("MatMul", ["x", "dense"], ["d"]),
        helper.make_node("Relu", ["d"], ["f"]),
        helper.make_node("Unsqueeze", ["f", "zero"], ["sequence"]),
        helper.make_node("Split", ["h"], ["h0", "c0"], axis=0, num_outputs=2),
        helper.make_node("LSTM", ["sequence", "w", "r", "", "", "h0", "c0"], ["", "h1", "c1"], hidden_size=HIDDEN),
        helper.make_node("Concat", ["h1", "c1"], ["h_after"], axis=0),
        helper.make_node("Squeeze", ["h1", "zero"], ["last"]),
        helper.make_node("MatMul", ["last", "out"], ["score"]),
        helper.make_node("Sigmoid", ["score"], ["y"]),
    ]
    constants = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    constants.append(numpy_helper.from_array(np.array([0]), "zero"))
    state, size = [2, rows, HIDDEN], [rows, CONTEXT + NEW]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, s) for name, s in (("x", size), ("h", state))]
    results = [("y", [rows, 1]), ("h_after", state)]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, s) for name, s in results]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), folder / "vad.onnx")
    np.save(folder / "x.npy", random.standard_normal((1, NEW * WINDOWS)).astype(np.float32))


def by_hand(session: InferenceSession, samples: Any) -> Any:
    """Return what the windows of a row give [1, windows, 1]."""
    padded = np.concatenate([np.zeros((1, CONTEXT), np.float32), samples], axis=1)
    state, found = np.zeros((2, 1, HIDDEN), np.float32), []
    for begin in range(0, samples.shape[1], NEW):
        given, state = session.run(["y", "h_after"], {"x": padded[:, begin : begin + CONTEXT + NEW], "h": state})
        found.append(given)
    return np.stack(found, axis=1)


def by_pipeline(session: Session, samples: Any) -> Any:
    """Return what the pipeline gives [1, windows, 1]."""
    return session.run(["speech"], {"samples": samples}, ())[0]


def seconds_of(case: Callable[[Any], Any], samples: Any) -> float:
    """Return the processor time of a row: it has one thread, and others may use the machine too."""
    begin = time.thread_time()
    case(samples)
    return time.thread_time() - begin


def main() -> None:
    """Measure and print."""
    print(describe_machine())
    for what, rows in (("rows in front", "batch"), ("whole", 1)):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            make(folder, rows)
            pipeline = partial(by_pipeline, compose_pipeline(folder, MANIFEST))
            hand = partial(by_hand, pipeline.args[0].components["vad"].opened.session.native)
            samples = np.load(folder / "x.npy")
            np.testing.assert_array_equal(hand(samples), pipeline(samples))
            cases = {"hand": partial(seconds_of, hand, samples), "pipeline": partial(seconds_of, pipeline, samples)}
            rounds = interleaved(cases, ROUNDS)
        each = {name: rounds[name] / WINDOWS * 1e6 for name in cases}
        print(
            f"state {what:13} by hand {each['hand']:5.1f} µs a window, pipeline {each['pipeline']:5.1f}, "
            f"ratio {rounds.ratio('hand', 'pipeline'):.3f}"
        )


if __name__ == "__main__":
    main()
