"""How a graph uses its images: layout and channels, from its convolutions and pools."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import Cli
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from support.models import save_model

from ortdeploy.graph.model import read_model

WEIGHTS: dict[str, np.ndarray] = {
    "w": np.ones((2, 3, 1, 1), np.float32),
    "two": np.array(2, np.float32),
    "mean": np.ones((3, 1, 1), np.float32),
    "scale": np.array(0.5, np.float32),
    "zero": np.array(0, np.int8),
    "w8": np.ones((2, 3, 1, 1), np.int8),
}


def node(operator: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, inputs.split(), [output], **attributes)


CONV = node("Conv", "x w", "y")
BRANCHES: dict[str, Any] = {
    name: helper.make_graph(
        [node("Conv", "x w", name)], name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)]
    )
    for name in ("then_branch", "else_branch")
}
FRONT = node("Transpose", "x", "t", perm=[0, 3, 1, 2])

CASES: dict[str, tuple[Sequence[onnx.NodeProto], str | None, list[object]]] = {
    "a convolution": ([CONV], "NCHW", ["n", 3, "h", "w"]),
    "groups": ([node("Conv", "x w", "y", group=2)], "NCHW", ["n", 6, "h", "w"]),
    "behind arithmetic with one number": (
        [node("Cast", "x", "a", to=1), node("Mul", "a two", "b"), node("Conv", "b w", "y")],
        "NCHW",
        ["n", 3, "h", "w"],
    ),
    "a mean for each channel may make channels": (
        [node("Sub", "x mean", "a"), node("Conv", "a w", "y")],
        "NCHW",
        ["n", "c", "h", "w"],
    ),
    "a pool says nothing of channels": ([node("GlobalAveragePool", "x", "y")], "NCHW", ["n", "c", "h", "w"]),
    "channels moved to the front": ([FRONT, node("Conv", "t w", "y")], "NHWC", ["n", "c", "h", 3]),
    "another transposition": (
        [node("Transpose", "x", "t", perm=[0, 2, 1, 3]), node("Conv", "t w", "y")],
        None,
        ["n", "c", "h", "w"],
    ),
    "used in both ways": (
        [node("Conv", "x w", "a"), FRONT, node("Conv", "t w", "y")],
        None,
        ["n", "c", "h", "w"],
    ),
    "quantized weights": (
        [node("DequantizeLinear", "w8 scale zero", "d"), node("Conv", "x d", "y")],
        "NCHW",
        ["n", 3, "h", "w"],
    ),
    "weights of a node": (
        [helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(WEIGHTS["w"])), node("Conv", "x c", "y")],
        "NCHW",
        ["n", 3, "h", "w"],
    ),
    "inside of a branch": (
        [node("IsNaN", "two", "odd"), helper.make_node("If", ["odd"], ["y"], **BRANCHES)],
        "NCHW",
        ["n", 3, "h", "w"],
    ),
    "weights that are computed": ([node("Neg", "w", "v"), node("Conv", "x v", "y")], None, ["n", "c", "h", "w"]),
    "no image": ([node("Relu", "x", "y")], None, ["n", "c", "h", "w"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_layout_and_channels_are_those_that_the_nodes_take(tmp_path: Path, name: str) -> None:
    nodes, layout, shape = CASES[name]
    path = save_model(
        tmp_path / "m.onnx",
        nodes,
        {"x": (TensorProto.FLOAT, ["n", "c", "h", "w"])},
        {"y": (TensorProto.FLOAT, [None] * 4)},
        WEIGHTS,
    )
    (x,) = read_model(path, "m.onnx").inputs
    assert (x.tensor.layout, list(x.tensor.shape or ())) == (layout, shape)


def test_a_function_of_the_model_tells_layout_channels_and_limits(tmp_path: Path) -> None:
    body = [CONV, node("Gather", "w i", "z")]
    function = helper.make_function("own", "Both", ["x", "w", "i"], ["y", "z"], body, [helper.make_opsetid("", 17)])
    path = save_model(
        tmp_path / "m.onnx",
        [helper.make_node("Both", ["x", "w", "i"], ["y", "z"], domain="own")],
        {"x": (TensorProto.FLOAT, ["n", "c", "h", "w"]), "i": (TensorProto.INT64, ["n"])},
        {"y": (TensorProto.FLOAT, [None] * 4)},
        WEIGHTS,
    )
    model = onnx.load(path)
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("own", 1))
    onnx.save(model, path)
    x, i = read_model(path, "m.onnx").inputs
    assert (x.tensor.layout, x.tensor.shape, i.limits) == ("NCHW", ("n", 3, "h", "w"), (-2, 1))


def test_a_mask_that_is_multiplied_on_is_no_image_of_its_own(tmp_path: Path) -> None:
    path = save_model(
        tmp_path / "m.onnx",
        [node("Mul", "mask x", "a"), node("Conv", "a w", "y")],
        {"mask": (TensorProto.FLOAT, ["n", "m", "h", "w"]), "x": (TensorProto.FLOAT, ["n", "c", "h", "w"])},
        {"y": (TensorProto.FLOAT, [None] * 4)},
        WEIGHTS,
    )
    assert [value.tensor.layout for value in read_model(path, "m.onnx").inputs] == [None, None]


@pytest.mark.parametrize(
    ("steps", "mode", "said"),
    [
        ("[{scale: 1}]", "RGB", "It is NHWC, and the graph takes it as NCHW. Add {layout: NCHW} as the last step."),
        ("[{scale: 1}, {layout: NCHW}]", "RGB", ""),
        ("[{grayscale: true}, {scale: 1}, {layout: NCHW}]", "RGB", "Dimension 0 of a row is 1, the model wants 3."),
    ],
)
def test_images_in_the_wrong_layout_or_with_other_channels_are_refused_though_all_sizes_are_free(
    cli: Cli, tmp_path: Path, steps: str, mode: str, said: str
) -> None:
    save_model(
        tmp_path / "m.onnx",
        [CONV],
        {"x": (TensorProto.FLOAT, ["n", "c", "h", "w"])},
        {"y": (TensorProto.FLOAT, ["n", 2, None, None])},
        WEIGHTS,
    )
    for number in range(3):
        Image.new(mode, (3, 3)).save(tmp_path / f"{number}.png")
    (tmp_path / "m.yaml").write_text(
        "version: 1\nmodels: {m: {path: m.onnx}}\njobs:\n  run:\n    model: m\n    input: {path: '*.png'}\n"
        f"    prepare: {{x: {steps}}}\n    output: {{path: out}}\n"
    )
    planned = cli("plan", tmp_path / "m.yaml", "--format", "json").json["diagnostics"]
    if not said:
        assert planned == []
        assert cli("apply", tmp_path / "m.yaml", "-q").code == 0
        return
    (one,) = planned
    assert (one["rule"], one["line"]) == ("input-shape-mismatch", 7)
    assert one["detail"].endswith(said)
