"""What kernels take beside values: gates of recurrent layers, by direction; nothing where sizes are open."""

from collections.abc import Sequence
from typing import Any

import pytest
from onnx import TensorProto, helper

from ortdeploy.graph.kernel_scratch import scratch_bytes

STEPS, ROWS, WIDTH, HIDDEN = 5, 3, 8, 16
TAKEN, STATES = STEPS * ROWS * WIDTH * 4, STEPS * ROWS * HIDDEN * 4


@pytest.mark.parametrize(
    ("operator", "direction", "sizes"),
    [
        ("LSTM", "forward", [4 * STATES]),
        ("LSTM", "reverse", [4 * STATES, TAKEN, STATES]),
        ("GRU", "bidirectional", [3 * STATES, 3 * STATES, TAKEN, STATES]),
        ("MatMul", None, []),
    ],
)
def test_recurrent_layers_hold_their_gates(operator: str, direction: str | None, sizes: Sequence[int]) -> None:
    attributes: dict[str, Any] = {"direction": direction, "hidden_size": HIDDEN} if direction else {}
    node = helper.make_node(operator, ["x", "w"], ["y"], **attributes)
    types = {"x": helper.make_tensor_type_proto(TensorProto.FLOAT, [STEPS, ROWS, WIDTH])}
    assert list(scratch_bytes(node, types)) == sizes


def test_open_sizes_take_nothing() -> None:
    types = {"x": helper.make_tensor_type_proto(TensorProto.FLOAT, [STEPS, "rows", WIDTH])}
    for node in (
        helper.make_node("GRU", ["x", "w"], ["y"], hidden_size=HIDDEN),
        helper.make_node("LSTM", ["other", "w"], ["y"], hidden_size=HIDDEN),
    ):
        assert list(scratch_bytes(node, types)) == []
