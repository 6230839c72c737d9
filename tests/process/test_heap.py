"""Tests of the heap's settings while models are opened."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.opening import memory_of_opening

from ortdeploy.process.heap import LARGE, MMAP_THRESHOLD, SMALL, SPARED, Heap, mallopt

MIB = 1024 * 1024


def test_big_blocks_are_mapped_alone_until_the_last_model_is_open() -> None:
    told: list[int] = []

    def note(parameter: int, value: int) -> int:
        if parameter == MMAP_THRESHOLD:
            told.append(value)
        return 1

    heap = Heap()
    with heap.opening(note):
        with heap.opening(note):
            pass
        assert told == [SMALL, SMALL]
    assert told == [SMALL, SMALL, LARGE]


def test_a_model_that_cannot_be_opened_leaves_the_heap_as_others_do() -> None:
    told = {}

    def note(parameter: int, value: int) -> int:
        told[parameter] = value
        return 1

    with pytest.raises(ValueError, match="damaged"), Heap().opening(note):
        raise ValueError("damaged")
    assert told[MMAP_THRESHOLD] == LARGE


def test_where_memory_is_scarce_values_of_runs_are_mapped_alone_too() -> None:
    told: list[int] = []

    def note(parameter: int, value: int) -> int:
        if parameter == MMAP_THRESHOLD:
            told.append(value)
        return 1

    heap = Heap()
    heap.spare(note)
    with heap.opening(note):
        heap.spare(note)
    assert told == [SPARED, SMALL, SPARED]


@pytest.mark.slow
@pytest.mark.skipif(mallopt() is None, reason="the C library is not glibc")
def test_opening_a_model_takes_less_than_twice_its_weights(tmp_path: Path) -> None:
    width, layers = 512, 32
    random = np.random.default_rng(1)
    weights = [
        numpy_helper.from_array(random.normal(size=(width, width)).astype(np.float32), f"w{number}")
        for number in range(layers)
    ]
    nodes = [helper.make_node("MatMul", [f"x{n}", f"w{n}"], [f"x{n + 1}"]) for n in range(layers)]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width]) for name in ("x0", f"x{layers}"))
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    _, peak = memory_of_opening(tmp_path / "m.onnx", freed=20 << 20)
    assert peak < 1.8 * layers * width * width * 4
