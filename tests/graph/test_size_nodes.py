"""Nodes that compute with sizes stay on the CPU, beside a provider with a memory of its own."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import REPOSITORY
from onnx import TensorProto, helper
from support.models import save_model

from ortdeploy.deployment.placement_prediction import predict_placement
from ortdeploy.facts.host import Kernel
from ortdeploy.graph.model import read_model
from ortdeploy.providers.catalogue import CPU
from ortdeploy.runtime.kernels import KnownKernels

CUDA = "CUDAExecutionProvider"
KERNELS = {
    CUDA: {**KnownKernels({})[CPU], "ai.onnx.Abs": (Kernel(first=13, last=2147483647, types={}),)},
    CPU: KnownKernels({})[CPU],
}
"""The kernels of the CPU stand for those of CUDA, which has them for all that is here."""

HALF = TensorProto.FLOAT16
node = helper.make_node
SHAPE = node("Shape", ["x"], ["sizes"])


def on_the_cpu(path: Path) -> int:
    prediction = predict_placement(read_model(path, path.name), [CUDA, CPU], KERNELS)
    assert prediction is not None
    return prediction.nodes.get(CPU, 0)


@pytest.mark.parametrize(
    ("name", "recorded"),
    [("text_encoder", 56), ("unet", 617), ("vae_decoder", 78)],
)
def test_real_models_are_predicted_as_cuda_recorded_them(name: str, recorded: int) -> None:
    """On an H200, with onnxruntime-gpu 1.31.1; of all their nodes, one in a model may be elsewhere."""
    assert abs(on_the_cpu(REPOSITORY / f"deployments/models/painter/{name}/model.onnx") - recorded) <= 1


@pytest.mark.parametrize(
    ("nodes", "stay"),
    [
        ([SHAPE, node("Gather", ["sizes", "zero"], ["rows"]), node("Mul", ["rows", "two"], ["y"])], 2),
        ([SHAPE, node("Reshape", ["x", "sizes"], ["y"])], 0),  # the kernel takes the sizes from the CPU's memory
        ([SHAPE, node("Reshape", ["sizes", "two"], ["y"])], 1),
        ([SHAPE, node("Gather", ["table", "sizes"], ["y"])], 0),  # a table of more than 100 elements
        ([node("Cast", ["x"], ["i"], to=TensorProto.INT64), node("Mul", ["i", "two"], ["y"])], 0),  # values, not sizes
        ([SHAPE, node("ConstantOfShape", ["sizes"], ["c"]), node("Mul", ["c", "c"], ["y"])], 0),
        ([node("Size", ["x"], ["n"]), node("Cast", ["n"], ["h"], to=HALF), node("Abs", ["h"], ["y"])], 1),  # half of it
    ],
)  # fmt: skip
def test_what_depends_on_sizes_alone_stays(tmp_path: Path, nodes: Sequence[onnx.NodeProto], stay: int) -> None:
    kind = HALF if nodes[-1].op_type == "Abs" else TensorProto.INT64
    constants = {"zero": np.array([0]), "two": np.array([2]), "table": np.zeros(101, np.int64)}
    path = save_model(
        tmp_path / "m.onnx", nodes, {"x": (TensorProto.FLOAT, ["a", "b"])}, {"y": (int(kind), [None])}, constants
    )
    assert on_the_cpu(path) == stay
