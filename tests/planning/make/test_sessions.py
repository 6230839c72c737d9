"""What the plan says of a model's sessions."""

import pytest
from support.facts import make_facts
from support.specs import MANIFEST, make_spec

from ortdeploy.deployment.resolve import resolve
from ortdeploy.plan.selection import on_cpu
from ortdeploy.plan.steps import OpenSession
from ortdeploy.planning.make.plan import make_plan

OPTIONS = """\
session: {optimized_model_filepath: made/m.onnx, config: {session.set_denormal_as_zero: true, session.dynamic_block_base: 4}}, \
run: {config: {disable_synchronize_execution_providers: true}}, \
providers: [{provider: CUDA, options: {device_id: 1, use_tf32: false, gpu_mem_limit: 2GiB}}]"""


def opening() -> OpenSession:
    spec = make_spec(MANIFEST.replace("{path: digits.onnx}", f"{{path: digits.onnx, {OPTIONS}}}"), folder="/srv/here")
    facts = make_facts(spec, {"providers": ["CUDAExecutionProvider", "CPUExecutionProvider"]})
    (step, _) = make_plan(resolve(spec, facts)).steps
    assert isinstance(step, OpenSession)
    return step


def test_options_are_the_text_that_is_parsed() -> None:
    step = opening()
    assert step.options["config"] == {
        "session.set_denormal_as_zero": "1",
        "session.dynamic_block_base": "4",
        "session.intra_op.allow_spinning": "0",  # threads sleep while the device computes
    }
    assert step.run_options == {"config": {"disable_synchronize_execution_providers": "1"}}
    (provider,) = step.candidates[0].providers
    assert provider.options == {"device_id": "1", "use_tf32": "0", "gpu_mem_limit": str(2 * 1024**3)}
    assert all(isinstance(text, str) for text in on_cpu(step).options["config"].values())


def test_paths_of_options_are_full() -> None:
    assert opening().options["optimized_model_filepath"] == "/srv/here/made/m.onnx"


@pytest.mark.parametrize(
    ("memory", "shape", "pattern"),
    [
        ("shrink_after_run: true", "size", False),
        ("arena: false", "size", False),
        ("profile: fast", "size", False),
        ("reuse: true", "size", None),  # as ONNX Runtime has it
        ("shrink_after_run: true", "2", None),
        ("shrink_after_run: true, pattern: true", "size", True),
    ],
)
def test_what_gives_memory_back_plans_no_pattern_for_each_of_many_shapes(
    memory: str, shape: str, pattern: bool | None
) -> None:
    spec = make_spec(MANIFEST.replace("{path: digits.onnx}", f"{{path: digits.onnx, memory: {{{memory}}}}}"))
    sides = {"inputs": {"image": f"float32[batch,{shape}]"}, "outputs": {"scores": "float32[batch,10]"}}
    (step, _) = make_plan(resolve(spec, make_facts(spec, {"models": {"digits": sides}}))).steps
    assert isinstance(step, OpenSession)
    assert step.options.get("enable_mem_pattern") is pattern
