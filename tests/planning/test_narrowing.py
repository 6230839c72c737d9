"""Providers that compute whole numbers of 64 bits with 32 narrow what their models may be fed."""

import pytest
from support.facts import make_facts
from support.specs import make_spec

from ortdeploy.deployment.resolve import resolve
from ortdeploy.plan.steps import PlannedInput, RunJob
from ortdeploy.planning.make.plan import make_plan


def planned(chain: str, dtype: str, words: str = "") -> PlannedInput:
    spec = make_spec(
        f"version: 1\nmodels:\n  m: {{path: m.onnx, providers: [{chain}]{words}}}\n"
        "jobs:\n  run: {model: m, input: {path: data.npy}, batch: {size: 2}, output: {path: out}}\n"
    )
    model = {"inputs": {"x": f"{dtype}[2,2]"}, "outputs": {"y": f"{dtype}[2,2]"}}
    source = {"columns": {"array": f"{dtype}[rows,2]"}, "rows": 2}
    providers = [f"{name}ExecutionProvider" for name in ("QNN", "WebGpu", "CUDA", "CPU")]
    data = {"models": {"m": model}, "inputs": {"run": source}, "providers": providers}
    plan = make_plan(resolve(spec, make_facts(spec, data)))
    (step,) = (step for step in plan.steps if isinstance(step, RunJob))
    return step.inputs[0]


QNN = "{provider: QNN, options: {backend_type: htp}}"
INT32, UINT32 = (-(2.0**31), 2.0**31 - 1), (0.0, 2.0**32 - 1)


@pytest.mark.parametrize(
    ("chain", "dtype", "limits"),
    [
        (QNN, "int64", INT32),
        (f"{QNN}, CPU", "uint64", UINT32),
        (QNN, "int32", None),
        (QNN, "float32", None),
        ("{provider: WebGpu, options: {enableInt64: true}}", "int64", INT32),
        ("{provider: WebGpu, options: {enableInt64: false}}", "int64", None),
        ("WebGpu", "int64", None),
        ("CUDA", "int64", None),
        ("CPU", "int64", None),
    ],
)
def test_fed_numbers_lie_within_what_the_provider_computes(
    chain: str, dtype: str, limits: tuple[float, float] | None
) -> None:
    assert planned(chain, dtype).limits == limits


def test_a_declared_range_is_narrowed_too() -> None:
    found = planned(QNN, "int64", ", inputs: {x: {range: [-5, 100000000000]}}")
    assert found.limits == (-5.0, INT32[1])
    within = planned(QNN, "int64", ", inputs: {x: {range: [-5, 5]}}")
    assert within.limits == (-5.0, 5.0)
