"""What may be on the CPU: each policy against written-down placements."""

from collections.abc import Mapping

import pytest
from support.fakes import FakeSession, double

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.plan.steps import OpenSession, PlannedProvider, PlannedSession
from ortdeploy.sessions.placement import check_placement

CPU, QNN, CUDA = "CPUExecutionProvider", "QNNExecutionProvider", "CUDAExecutionProvider"


def check(placement: Mapping[str, int], policy: str | int, chain: tuple[str, ...] = (QNN, CPU)) -> str | None:
    candidate = PlannedSession(name="s", providers=tuple(PlannedProvider(name=name, options={}) for name in chain))
    step = OpenSession(
        session="s",
        model="m",
        path="m.onnx",
        sha256="",
        candidates=(candidate,),
        use="first",
        on_unavailable="fail",
        cache=False,
        cpu_fallback=policy,
        probe=None,
        options={},
        run_options={},
    )
    return check_placement(step, candidate, FakeSession(double, placement=placement, cpu_operators=("Gather", "Loop")))


def test_all_nodes_where_they_belong() -> None:
    for policy in ("forbid", "warn", "allow", 0, "0%"):
        assert check({QNN: 9}, policy) is None
        assert check({CPU: 9}, policy, (CPU,)) is None


def test_some_nodes_on_the_cpu() -> None:
    remark = check({QNN: 98, CPU: 2}, "warn")
    assert remark is not None
    assert "2 of 100 nodes" in remark
    assert "Gather, Loop" in remark
    assert check({QNN: 98, CPU: 2}, "allow") is None
    assert check({QNN: 98, CPU: 2}, 2) is None
    assert check({QNN: 98, CPU: 2}, "2%") is None


@pytest.mark.parametrize("policy", ["forbid", 1, "1.9%"])
def test_too_many_nodes_on_the_cpu(policy: str | int) -> None:
    with pytest.raises(OrtdeployError, match=r"2 of 100 nodes .* \(Gather, Loop\)"):
        check({QNN: 98, CPU: 2}, policy)


@pytest.mark.parametrize("policy", ["forbid", "warn", 100, "100%"])
def test_a_provider_without_nodes(policy: str | int) -> None:
    with pytest.raises(OrtdeployError, match="CUDAExecutionProvider took no node"):
        check({QNN: 9}, policy, (QNN, CUDA, CPU))
    assert check({CPU: 9}, "allow") is None
