"""What follows from the number formats of providers: checks of what is fed, tolerances, and what is said of both."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.facts import make_facts
from support.specs import make_spec

from ortdeploy.deployment.number_formats import LIMITS
from ortdeploy.deployment.resolve import resolve
from ortdeploy.deployment.resolved import Deployment
from ortdeploy.plan.plan_file import decode, encode
from ortdeploy.plan.steps import OpenSession, Plan, PlannedInput, RunJob
from ortdeploy.planning.make.checks import make_checks
from ortdeploy.planning.make.plan import make_plan
from ortdeploy.providers.catalogue import PROVIDERS, Provider
from ortdeploy.providers.options import computed_formats, option_facts
from ortdeploy.tensors.tolerances import BETWEEN_PROVIDERS, TOLERANCES, UNKNOWN

NAMES = ("QNN", "WebGpu", "CUDA", "OpenVINO", "Tensorrt", "MIGraphX", "CoreML", "Dml", "Xnnpack", "CPU")


def resolved(
    chain: str, dtype: str, words: str = "", nodes: tuple[str, ...] = (), devices: tuple[str, ...] = ()
) -> Deployment:
    spec = make_spec(
        f"version: 1\nmodels:\n  m: {{path: m.onnx, providers: [{chain}]{words}}}\n"
        "jobs:\n  run: {model: m, input: {path: data.npy}, batch: {size: 2}, output: {path: out}}\n"
    )
    model = {"inputs": {"x": f"{dtype}[2,2]"}, "outputs": {"y": f"{dtype}[2,2]"}, "nodes": list(nodes)}
    source = {"columns": {"array": f"{dtype}[rows,2]"}, "rows": 2}
    plugged = {text.split()[0] for text in devices}
    providers = [f"{name}ExecutionProvider" for name in NAMES if f"{name}ExecutionProvider" not in plugged]
    data = {"models": {"m": model}, "inputs": {"run": source}, "providers": providers, "devices": list(devices)}
    return resolve(spec, make_facts(spec, data))


def planned(chain: str, dtype: str, words: str = "", **more: tuple[str, ...]) -> PlannedInput:
    (step,) = (step for step in plan_of(chain, dtype, words, **more).steps if isinstance(step, RunJob))
    return step.inputs[0]


def plan_of(chain: str, dtype: str, words: str = "", **more: tuple[str, ...]) -> Plan:
    return make_plan(resolved(chain, dtype, words, **more))


def opening(chain: str, dtype: str = "float32", words: str = "", **more: tuple[str, ...]) -> OpenSession:
    (step,) = (step for step in plan_of(chain, dtype, words, **more).steps if isinstance(step, OpenSession))
    return step


def with_options(provider: str, options: str) -> str:
    return f"{{provider: {provider}, options: {{{options}}}}}"


QNN = with_options("QNN", "backend_type: htp")
INT32, UINT32, HALF = (-(2.0**31), 2.0**31 - 1), (0.0, 2.0**32 - 1), (-65504.0, 65504.0)
FLUSHED = ", session: {config: {session.set_denormal_as_zero: true}}"
QUANTIZED = ("ai.onnx.QuantizeLinear 13",)


@pytest.mark.parametrize(
    ("chain", "dtype", "words", "limits", "fails", "smallest"),
    [
        (QNN, "int64", "", INT32, True, 0),
        (f"{QNN}, CPU", "uint64", "", UINT32, True, 0),
        (with_options("WebGpu", "enableInt64: true"), "int64", "", INT32, True, 0),
        (QNN, "float32", "", HALF, True, 0),
        (with_options("QNN", "soc_model: 69"), "float64", "", HALF, True, 0),
        (with_options("Tensorrt", "trt_fp16_enable: true"), "float32", "", HALF, False, 0),
        (with_options("MIGraphX", "migraphx_fp16_enable: true"), "float32", "", HALF, False, 0),
        ("CoreML", "float32", "", HALF, False, 0),
        (with_options("OpenVINO", "device_type: GPU"), "float32", "", HALF, False, 0),
        ("WebGpu", "float32", "", None, False, 2.0**-126),
        ("CPU", "float32", FLUSHED, None, False, 2.0**-126),
        (f"WebGpu, {QNN}", "float32", "", HALF, True, 0),
        (f"CoreML, {QNN}", "float32", "", HALF, True, 0),
        ("WebGpu, CoreML", "float32", "", HALF, False, 0),
    ],
)
def test_fed_numbers_are_checked_that_the_provider_cannot_hold(
    chain: str, dtype: str, words: str, limits: tuple[float, float] | None, fails: bool, smallest: float
) -> None:
    narrowed = planned(chain, dtype, words).narrowed_by
    assert narrowed is not None
    assert (narrowed.limits, narrowed.fails, narrowed.smallest) == (limits, fails, smallest)


@pytest.mark.parametrize(
    ("chain", "dtype"),
    [
        (QNN, "int32"),
        (QNN, "float16"),
        (with_options("QNN", "backend_type: cpu"), "float32"),
        (with_options("QNN", "htp_bf16_enable: true, soc_model: 88"), "float32"),
        (with_options("WebGpu", "enableInt64: false"), "int64"),
        ("WebGpu", "int64"),
        ("CUDA", "int64"),
        ("CUDA", "float32"),
        ("CPU", "int64"),
        ("CPU", "float32"),
        (with_options("Tensorrt", "trt_fp16_enable: false"), "float32"),
        (with_options("CoreML", "ModelFormat: MLProgram"), "float32"),
        (with_options("CoreML", "MLComputeUnits: CPUOnly"), "float32"),
        (with_options("OpenVINO", "device_type: GPU, precision: FP32"), "float32"),
        ("OpenVINO", "float32"),
    ],
)
def test_fed_numbers_that_the_provider_holds_are_not_checked(chain: str, dtype: str) -> None:
    assert planned(chain, dtype).narrowed_by is None


@pytest.mark.parametrize(
    ("kind", "options", "is_narrowed"),
    [
        ("GPU", "", True),
        ("GPU", "load_config: {GPU: {INFERENCE_PRECISION_HINT: f16}}", True),
        ("GPU", "load_config: {CPU: {INFERENCE_PRECISION_HINT: f32}}", True),
        ("GPU", "load_config: {GPU: {INFERENCE_PRECISION_HINT: f32}}", False),
        ("GPU", "load_config: {GPU: {EXECUTION_MODE_HINT: ACCURACY}}", False),
        ("NPU", "", True),
        ("CPU", "", False),
    ],
)
def test_the_device_of_a_plugin_decides_too(kind: str, options: str, is_narrowed: bool) -> None:
    device = f"OpenVINOExecutionProvider 0 {kind} Intel x"
    found = planned(with_options("OpenVINO", options), "float32", devices=(device,)).narrowed_by
    assert (found is not None) == is_narrowed


@pytest.mark.parametrize(("options", "is_narrowed"), [("backend_type: htp", False), ("soc_model: 69", True)])
def test_the_simulator_computes_in_half_precision_with_soc_model_alone(options: str, is_narrowed: bool) -> None:
    found = planned(
        with_options("QNN", options), "float32", devices=("QNNExecutionProvider 0 CPU Qualcomm x",)
    ).narrowed_by
    assert (found is not None) == is_narrowed


def test_numbers_for_a_quantized_graph_do_not_fail() -> None:
    """Its first operator may bring them into range."""
    narrowed = planned(QNN, "float32", nodes=QUANTIZED).narrowed_by
    assert narrowed is not None
    assert not narrowed.fails


def test_a_declared_range_stays_what_it_is() -> None:
    found = planned(QNN, "int64", ", inputs: {x: {range: [-5, 100000000000]}}")
    assert found.limits == (-5.0, 1e11)
    assert found.narrowed_by is not None
    assert found.narrowed_by.limits == INT32


@pytest.mark.parametrize(
    ("chain", "words", "nodes", "probe"),
    [
        ("CPU", "", (), UNKNOWN),  # nothing is compared, and plans stay as they are
        ("WebGpu", "", (), BETWEEN_PROVIDERS["float32"]),
        ("Xnnpack", "", (), BETWEEN_PROVIDERS["float32"]),
        ("WebGpu", "", QUANTIZED, UNKNOWN),
        (with_options("CUDA", "use_tf32: false"), "", (), BETWEEN_PROVIDERS["float32"]),
        ("CUDA", "", (), UNKNOWN),
        ("CoreML", "", (), UNKNOWN),
        ("Dml", "", (), UNKNOWN),
        ("OpenVINO", "", (), BETWEEN_PROVIDERS["bfloat16"]),
        ("CUDA", ", probe: {rtol: 0.3}", (), (0.3, UNKNOWN[1])),
        ("CUDA", ", probe: {atol: 0.3}", (), (UNKNOWN[0], 0.3)),
        ("CUDA", ", probe: false", (), None),
    ],
)
def test_the_formats_decide_how_near_the_cpu_results_must_be(
    chain: str, words: str, nodes: tuple[str, ...], probe: tuple[float, float] | None
) -> None:
    assert opening(chain, words=words, nodes=nodes).probe == probe


@pytest.mark.parametrize(
    ("chain", "within"),
    [
        ("CPU", [TOLERANCES["float32"]]),
        ("CUDA", [TOLERANCES["tf32"]]),
        (with_options("CUDA", "use_tf32: false"), [TOLERANCES["float32"]]),
        ("WebGpu", [TOLERANCES["float32"]]),
        (with_options("Tensorrt", "trt_bf16_enable: true"), [TOLERANCES["bfloat16"]]),
        (with_options("Tensorrt", "trt_fp16_enable: true"), [TOLERANCES["float16"]]),
    ],
)
def test_the_formats_decide_how_near_golden_outputs_must_be(chain: str, within: list[tuple[float, float]]) -> None:
    checks = make_checks(resolved(chain, "float32", ", checks: [golden, {path: other, atol: 0.5}]"), ["m"])
    found = [check.tolerances[0][""] for check in checks]
    assert found == within
    assert [check.tolerances[1][""] for check in checks] == [(rtol, 0.5) for rtol, _ in within]


def test_a_plan_with_whole_tolerances_is_the_same_when_it_is_read_again() -> None:
    plan = plan_of("CUDA", "float32", ", probe: {rtol: 1, atol: 0}")
    written = json.dumps(encode(plan))
    assert json.dumps(encode(decode(Plan, json.loads(written)))) == written


def test_each_session_has_golden_tolerances_of_its_own() -> None:
    words = ", checks: [golden], sessions: [{name: gpu, providers: [CUDA]}, {name: cpu, providers: [CPU]}]"
    spec = make_spec(f"version: 1\nmodels:\n  m: {{path: m.onnx{words}}}\njobs: {{}}\n")
    providers = [f"{name}ExecutionProvider" for name in NAMES]
    found = make_checks(resolve(spec, make_facts(spec, {"providers": providers})), ["m"])
    assert [check.tolerances[0][""] for check in found] == [TOLERANCES["tf32"], TOLERANCES["float32"]]
    assert [len(check.opening.computes) for check in found] == [1, 0]


def test_the_plan_says_in_which_formats_is_computed() -> None:
    assert opening("WebGpu").computes == ()
    (said,) = opening("CUDA").computes
    assert "use_tf32: false" in said


def options_in(schema: Any) -> Iterator[str]:
    """Yield the provider options that a condition looks at."""
    if isinstance(schema, list):
        for one in schema:
            yield from options_in(one)
    elif isinstance(schema, dict):
        for key, inner in schema.items():
            yield from inner.get("properties", {}) if key == "options" else options_in(inner)


@pytest.mark.parametrize("one", PROVIDERS, ids=lambda one: one.short)
def test_the_catalogue_names_known_formats_and_options(one: Provider) -> None:
    for entry in computed_formats(one) or ():
        assert set(entry) - {"when", "fed"} == {"in", "detail", "x-source"}
        assert entry["in"] in LIMITS
        assert entry["detail"].endswith(".")
        assert all(option_facts(one, name) for name in options_in(entry.get("when", {})))
