"""Small graphs made at random: with exit 0, every row is what plain ONNX Runtime gives for it alone."""

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from support.effort import effort

from ortdeploy.cli.main import main

STEPS = 4  # size of the second and third axis, and of a batch: coincidences are what goes wrong
ROWS = 12


@dataclass
class Drawn:
    """A chain of nodes over x [batch, STEPS, STEPS], and where the rows are for one who knows how it was made."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    rank: int = 3

    def add(self, operator: str, *constants: Sequence[int], **attributes: Any) -> None:
        names = [f"c{len(self.constants) + index}" for index in range(len(constants))]
        self.constants += [
            numpy_helper.from_array(np.array(values, np.int64), name)
            for name, values in zip(names, constants, strict=True)
        ]
        before = f"v{len(self.nodes)}" if self.nodes else "x"
        self.nodes.append(helper.make_node(operator, [before, *names], [f"v{len(self.nodes) + 1}"], **attributes))


@st.composite
def graphs(draw: st.DrawFn) -> Drawn:
    drawn = Drawn()
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["transpose", "reshape", "reduce", "softmax", "cumsum", "neg", "flip"]))
        axis = draw(st.integers(0, max(drawn.rank - 1, 0)))
        match kind:
            case "transpose":
                drawn.add("Transpose", perm=draw(st.permutations(range(drawn.rank))))
            case "reshape":
                shape = draw(
                    st.sampled_from(
                        [[-1, STEPS, STEPS], [STEPS, -1, STEPS], [STEPS, STEPS, -1], [-1, STEPS], [STEPS, -1]]
                    )
                )
                drawn.add("Reshape", shape)
                drawn.rank = len(shape)
            case "reduce" if drawn.rank > 1:
                keep = draw(st.booleans())
                drawn.add("ReduceMean", axes=[axis], keepdims=int(keep))
                drawn.rank -= not keep
            case "softmax":
                drawn.add("Softmax", axis=axis)
            case "cumsum":
                drawn.add("CumSum", axis)  # type: ignore[arg-type]  # a scalar
            case "flip":
                drawn.add("Slice", [-1], [-(2**31)], [axis], [-1])
            case _:
                drawn.add("Neg")
    return drawn


def save(path: Path, drawn: Drawn, *, batch: int | str, steps: int | str, told: bool) -> None:
    shape = [None] * drawn.rank if told else None
    graph = helper.make_graph(
        drawn.nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, STEPS, steps])],
        [helper.make_tensor_value_info(f"v{len(drawn.nodes)}", TensorProto.FLOAT, shape)],
        drawn.constants,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))


def alone(folder: Path, data: np.ndarray, *, batch: int | str) -> list[np.ndarray] | None:
    """What each row gives by itself: in a run of its own, or in a batch of copies where the graph's is fixed."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(folder / "m.onnx", options)
    copies = batch if isinstance(batch, int) else 1
    try:
        return [session.run(None, {"x": np.repeat(row[np.newaxis], copies, axis=0)})[0] for row in data]
    except Exception:  # noqa: BLE001  every error of the binding is its own class
        return None


def is_row_of(row: np.ndarray, run: np.ndarray, *, copies: int) -> bool:
    """Whether a row is what some axis of a run holds at each place that may be the row's."""
    axes = [axis for axis, size in enumerate(run.shape) if size == copies]
    return any(
        row.shape == np.take(run, 0, axis).shape and np.allclose(row, np.take(run, place, axis), rtol=2e-3, atol=1e-4)
        for axis in axes
        for place in range(copies)
    )


@settings(max_examples=effort(4, 60), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    drawn=graphs(),
    batch=st.sampled_from(["batch", "N", STEPS]),
    steps=st.sampled_from([STEPS, "time"]),
    told=st.booleans(),
    seed=st.integers(0, 9),
)
def test_with_exit_0_every_row_is_what_it_is_alone(
    drawn: Drawn, batch: int | str, steps: int | str, told: bool, seed: int
) -> None:
    folder = Path(tempfile.mkdtemp(dir=tempfile.gettempdir()))
    try:
        save(folder / "m.onnx", drawn, batch=batch, steps=steps, told=told)
        data = np.random.default_rng(seed).standard_normal((ROWS, STEPS, STEPS)).astype(np.float32)
        np.save(folder / "data.npy", data)
        (folder / "m.yaml").write_text(
            "version: 1\nmodels: {m: {path: m.onnx}}\njobs:\n"
            f"  run: {{model: m, input: {{path: data.npy}}, batch: {{size: {STEPS}}}, output: {{path: out, format: npy}}}}\n"
        )
        code = main(["apply", str(folder / "m.yaml"), "-q"])
        event(f"exit {code}")
        assert code in {0, 1}
        if code == 0:
            found = np.load(next((folder / "out").glob("part-*.npy")))
            expected = alone(folder, data, batch=batch)
            assert expected is not None
            copies = batch if isinstance(batch, int) else 1
            assert len(found) == ROWS
            for row, run in zip(found, expected, strict=True):
                assert is_row_of(row, run, copies=copies)
    finally:
        shutil.rmtree(folder)
