"""What shape inference computes of sizes is quiet, whatever the numbers are."""

import warnings
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper
from support.models import Shape, save_model

from ortdeploy.graph.model import read_model
from ortdeploy.graph.shapes import infer_shapes


def test_sizes_that_divide_by_zero_warn_nobody(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Cast", ["sizes"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Div", ["numbers", "zero"], ["many"]),
        helper.make_node("Cast", ["many"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Reshape", ["x", "whole"], ["y"]),
    ]
    weights = {"zero": np.zeros(1, np.float32)}
    inputs: dict[str, tuple[int, Shape]] = {"x": (TensorProto.FLOAT, ["n", 3])}
    save_model(tmp_path / "m.onnx", nodes, inputs, {"y": (TensorProto.FLOAT, ["a", "b"])}, weights)
    skeleton = read_model(tmp_path / "m.onnx", "m.onnx").skeleton
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        infer_shapes(skeleton, {"x": (2, 3)})
    assert not warned
