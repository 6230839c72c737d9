"""Small real models, made on the spot."""

import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

Shape = Sequence[int | str | None]


def save_model(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Shape]],
    outputs: Mapping[str, tuple[int, Shape]],
    weights: dict[str, np.ndarray] | None = None,
    *,
    opset: int = 17,
    ir_version: int = 8,
) -> Path:
    initializers = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in outputs.items()],
        initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(path))
    return path


def scale_model(path: Path, *, batch: int | str = "batch", width: int | str = 4, factor: float = 2.0) -> Path:
    """y = factor * x, rows of `width` numbers."""
    return save_model(
        path,
        [helper.make_node("Mul", ["x", "factor"], ["y"])],
        {"x": (TensorProto.FLOAT, [batch, width])},
        {"y": (TensorProto.FLOAT, [batch, width])},
        {"factor": np.array(factor, dtype=np.float32)},
    )


def loop_body(nodes: Sequence[onnx.NodeProto], width: int, weights: Sequence[TensorProto] = ()) -> onnx.GraphProto:
    """The body of a Loop that goes on: nodes that make `next` of `state` [n, width] and of the number of the `pass`."""
    rows: Shape = ["n", width]
    return helper.make_graph(
        [*nodes, helper.make_node("Identity", ["more"], ["go_on"])],
        "body",
        [
            helper.make_tensor_value_info("pass", TensorProto.INT64, []),
            helper.make_tensor_value_info("more", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, rows),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, rows),
        ],
        list(weights),
    )


TRAPS = pytest.mark.skipif(
    sys.platform == "win32" or platform.machine() not in {"x86_64", "AMD64"},
    reason="only x86 traps at the division of `crashing_model`, and children have no pipes on Windows",
)


def crashing_model(path: Path) -> Path:
    """The least int64 divided by a row of 4 numbers. A row with -1 ends the process on x86-64, by SIGFPE.

    The quotient does not fit, the processor traps, and onnxruntime 1.32 looks only for divisors of 0.
    """
    return save_model(
        path,
        [helper.make_node("Div", ["least", "x"], ["y"])],
        {"x": (TensorProto.INT64, ["batch", 4])},
        {"y": (TensorProto.INT64, ["batch", 4])},
        {"least": np.array(np.iinfo(np.int64).min)},
    )


def gather_model(path: Path, *, computed: bool = False) -> Path:
    """Row of a table by index: an index outside of 0 to 9 makes ONNX Runtime refuse the whole batch.

    A `computed` index is not known to be one before the run.
    """
    table = np.arange(20, dtype=np.float32).reshape(10, 2)
    nodes = [
        helper.make_node("Neg", ["index"], ["minus"]),
        helper.make_node("Neg", ["minus"], ["plus"]),
        helper.make_node("Gather", ["table", "plus"], ["y"]),
    ]
    return save_model(
        path,
        nodes if computed else [helper.make_node("Gather", ["table", "index"], ["y"])],
        {"index": (TensorProto.INT64, ["batch"])},
        {"y": (TensorProto.FLOAT, ["batch", 2])},
        {"table": table},
    )


def lora_model(path: Path, *, required: bool = False) -> Path:
    """y = x + x @ lora_A @ lora_B, with zero-size defaults, so that the base model runs; or without any."""
    nodes = [
        helper.make_node("MatMul", ["x", "lora_A"], ["down"]),
        helper.make_node("MatMul", ["down", "lora_B"], ["up"]),
        helper.make_node("Add", ["x", "up"], ["y"]),
    ]
    return save_model(
        path,
        nodes,
        {
            "x": (TensorProto.FLOAT, ["batch", 4]),
            "lora_A": (TensorProto.FLOAT, [4, "rank"]),
            "lora_B": (TensorProto.FLOAT, ["rank", 4]),
        },
        {"y": (TensorProto.FLOAT, ["batch", 4])},
        {} if required else {"lora_A": np.zeros((4, 0), np.float32), "lora_B": np.zeros((0, 4), np.float32)},
    )


def make_adapter(path: Path, **arrays: np.ndarray) -> Path:
    adapter = onnxruntime.AdapterFormat()
    adapter.set_adapter_version(1)
    adapter.set_model_version(1)
    adapter.set_parameters({name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()})
    adapter.export_adapter(str(path))
    return path
