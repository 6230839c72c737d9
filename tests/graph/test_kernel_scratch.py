"""What kernels take beside values: states and gates of recurrent layers, by direction; nothing where sizes are open."""

from collections.abc import Sequence
from typing import Any

import pytest
from onnx import TensorProto, helper

from ortdeploy.graph.kernel_scratch import scratch_bytes

STEPS, ROWS, WIDTH, HIDDEN = 5, 3, 8, 16
TAKEN, STATE = STEPS * ROWS * WIDTH * 4, ROWS * HIDDEN * 4
STATES = STEPS * STATE
LAST_OF_LSTM, LAST_OF_GRU = [STATE, STATE], [2 * STATE]  # outputs that nobody wants; the GRU has two directions


@pytest.mark.parametrize(
    ("operator", "direction", "sizes"),
    [
        ("LSTM", "forward", [*LAST_OF_LSTM, *[STATE] * 3, 4 * STATES]),
        ("LSTM", "reverse", [*LAST_OF_LSTM, *[STATE] * 3, 4 * STATES, TAKEN, STATES]),
        ("GRU", "bidirectional", [*LAST_OF_GRU, *[STATE] * 2, 3 * STATES, *[STATE] * 2, 3 * STATES, TAKEN, STATES]),
        ("MatMul", None, []),
    ],
)
def test_recurrent_layers_hold_states_and_gates(operator: str, direction: str | None, sizes: Sequence[int]) -> None:
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
