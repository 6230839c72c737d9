"""A fused session proves itself on its first run, and lets go of what it was compared with."""

import numpy as np
import pytest
from support.fakes import FakeSession

from ortdeploy.diagnostics import ProviderFailedError
from ortdeploy.plan.op_graph import Fusion, OpGraph, OpNode
from ortdeploy.plan.pipeline import PlannedValue
from ortdeploy.plan.steps import OpenSession
from ortdeploy.sessions.fused import FusedSession

VALUE = PlannedValue(name="y", dtype="float32", shape=("rows", 2), layout=None)
NODE = OpNode(operator="Neg", domain="ai.onnx", inputs=("raw",), outputs=("y",), attributes={})
BEHIND = OpGraph(
    nodes=(NODE,),
    constants=(),
    inputs=(PlannedValue(name="raw", dtype="float32", shape=("rows", 2), layout=None),),
    outputs=(VALUE,),
    opsets={"ai.onnx": 21},
)
FUSION = Fusion(before=None, after=BEHIND, takes=(("x", "a"),), gives=(("out", "raw"),), inputs=("a",), outputs=("y",))
STEP = OpenSession(
    session="s", model="m", path="m.onnx", sha256="", candidates=(), use="first", on_unavailable="fail",
    cpu_fallback="allow", probe=None, options={}, run_options={}, cache=False, fusion=FUSION,
)  # fmt: skip


def fused(factor: float, opened: list[str], dtype: type = np.float32) -> FusedSession:
    """A fused graph that multiplies by a factor; its parts double and then negate."""

    def parts() -> list[FakeSession | None]:
        opened.append("parts")
        return [None, FakeSession(lambda fed: {"out": fed["x"] * 2}), FakeSession(lambda fed: {"y": -fed["raw"]})]

    return FusedSession(FakeSession(lambda fed: {"$y": (fed["$a"] * factor).astype(dtype)}), STEP, parts)


def test_the_first_run_of_rows_that_differ_is_compared_and_no_other() -> None:
    opened: list[str] = []
    session = fused(-2, opened)
    for _ in range(3):
        (found,) = session.run(["y"], {"a": np.array([[1, 2], [3, 4]], np.float32)}, ())
        np.testing.assert_array_equal(found, [[-2, -4], [-6, -8]])
    assert opened == ["parts"]


def test_blank_rows_are_no_proof() -> None:
    opened: list[str] = []
    session = fused(2, opened)
    for _ in range(2):
        session.run(["y"], {"a": np.zeros((2, 2), np.float32)}, ())
    with pytest.raises(ProviderFailedError, match="Remove fuse: true"):
        session.run(["y"], {"a": np.array([[1, 2], [3, 4]], np.float32)}, ())
    assert opened == ["parts"], "they stay open until it is proven"


@pytest.mark.parametrize(
    ("factor", "dtype"), [(2, np.float32), (-2.1, np.float32), (-2, np.float64), (np.nan, np.float32)]
)
def test_another_result_is_refused(factor: float, dtype: type) -> None:
    with pytest.raises(ProviderFailedError, match="Remove fuse: true"):
        fused(factor, [], dtype).run(["y"], {"a": np.ones((2, 2), np.float32)}, ())


def test_noise_of_another_order_of_sums_is_let_through() -> None:
    assert len(fused(-2.00001, []).run(["y"], {"a": np.ones((2, 2), np.float32)}, ())) == 1
