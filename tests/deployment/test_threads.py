"""Threads of sessions: what limits leave them, and that they sleep while a device computes."""

import pytest
from support.specs import make_spec

from ortdeploy.deployment.threads import threads_at_work, threads_of_session, without_spinning

MODEL = """\
version: 1
models:
  m: {{path: m.onnx, sessions: [{{name: a, providers: [CPU], count: {count}, callers: {callers}}}]}}
"""

CPU, QNN, CUDA = "CPUExecutionProvider", "QNNExecutionProvider", "CUDAExecutionProvider"
KEY = "session.intra_op.allow_spinning"


@pytest.mark.parametrize(
    ("limits", "count", "callers", "threads"),
    [
        ([None], 1, 1, None),
        ([4], 1, 1, 4),
        ([4, None, 2], 1, 1, 2),
        ([4], 2, 1, 2),
        ([4], 1, 3, 2),
        ([4], 2, 2, 1),
        ([1], 4, 4, 1),
    ],
)
def test_a_limit_is_divided_over_sessions_and_callers(
    limits: list[int | None], count: int, callers: int, threads: int | None
) -> None:
    (model,) = make_spec(MODEL.format(count=count, callers=callers)).models
    assert threads_of_session(model, limits) == threads
    if threads is not None and threads > 1:
        assert threads_at_work(model, threads) <= min(limit for limit in limits if limit is not None)


@pytest.mark.parametrize(
    ("first", "spins"), [([QNN], False), ([QNN, CUDA], False), ([QNN, CPU], None), ([CPU], None), ([], None)]
)
def test_threads_sleep_where_every_session_begins_with_an_accelerator(first: list[str], spins: bool | None) -> None:
    options = without_spinning({"intra_op_num_threads": 2, "config": {"a": 1}}, first)
    assert options["config"].get(KEY) is spins
    assert options["config"]["a"] == 1


def test_what_the_manifest_says_of_spinning_stays() -> None:
    assert without_spinning({"config": {KEY: True}}, [QNN])["config"] == {KEY: True}
