"""Plans to JSON and back."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.facts import make_facts
from support.specs import MANIFEST, make_spec

from ortdeploy.deployment.resolve import resolve
from ortdeploy.facts.data import FileState
from ortdeploy.plan.pipeline import PlannedPreset
from ortdeploy.plan.plan_file import decode, encode, plan_digest
from ortdeploy.plan.steps import FinishedJob, Plan, RunJob, Step
from ortdeploy.planning.make.plan import make_plan

RICH = (
    MANIFEST.replace(
        "{path: digits.onnx}",
        "{path: digits.onnx, session: {config: {session.disable_prepacking: true}}, inputs: {image: {range: [0, 1]}}}",
    ).replace("{path: data.npy}", "{path: data.npy, key: [row]}")
    + """\
    adapter: french
    prepare: {image: [{scale: 0.5}]}
    postprocess: [{argmax: scores, as: digit, value_as: best}, {labels: digit, as: name, from: names.txt}]
    errors: {max_failed: 0.5%}
adapters:
  french: {path: f.onnx_adapter, model: digits}
"""
)
STEP: Any = Step  # a union, which mypy takes for no type


def plan(text: str = RICH, facts: dict[str, Any] | None = None) -> Plan:
    spec = make_spec(text)
    return make_plan(resolve(spec, make_facts(spec, facts)))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("text", [RICH, MANIFEST])
def test_a_plan_comes_back_from_the_child_protocol_as_itself(text: str, packed: bool) -> None:
    made = plan(
        text, {"inputs": {"read": {"files": ["a\udcff.npy", "b.npy"], "columns": {"image": "float32[rows,1,8,8]"}}}}
    )
    files = [one.files for one in made.inputs] + [step.input.files for step in made.steps if isinstance(step, RunJob)]
    assert any(len(one) == 2 for one in files)
    assert decode(Plan, json.loads(json.dumps(encode(made, packed=packed)))) == made


def test_a_plan_carries_labels_contract_and_identity() -> None:
    steps = plan().steps
    assert [type(step).__name__ for step in steps] == ["OpenSession", "LoadAdapter", "RunJob"]
    job = steps[-1]
    assert isinstance(job, RunJob)
    assert job.postprocess[1].options["lines"] == ["a", "b"]
    assert job.inputs[0].limits == (0.0, 1.0)
    assert job.fetch == ("scores",)
    assert job.output.columns == ("scores", "digit", "best", "name")
    assert set(job.identity) == {
        "model", "adapter", "providers", "columns", "prepare", "batch", "postprocess", "output",
    }  # fmt: skip


def test_a_finished_job_is_no_step() -> None:
    made = plan(MANIFEST, {"outputs": {"read": {"state": "finished"}}})
    assert made.steps == ()
    assert made.finished == (FinishedJob(job="read", output="outbox/read", path="outbox/read", rows=0),)


def test_what_the_digest_of_a_job_depends_on() -> None:
    def identity(text: str, facts: dict[str, Any] | None = None) -> dict[str, str]:
        job = plan(text, facts).steps[-1]
        assert isinstance(job, RunJob)
        return dict(job.identity)

    def changed(text: str, facts: dict[str, Any] | None = None) -> set[str]:
        before, after = identity(RICH), identity(text, facts)
        return {name for name in before if before[name] != after[name]}

    assert changed(RICH.replace("0.5%", "9%")) == set()
    assert changed(RICH.replace("prepacking: true", "prepacking: false")) == set()
    assert changed(RICH.replace("scale: 0.5", "scale: 0.25")) == {"prepare"}
    assert changed(RICH.replace("as: digit,", "as: digit_,").replace("labels: digit,", "labels: digit_,")) == {
        "postprocess",
        "output",
    }
    assert changed(RICH, {"adapters": {"french": {"sha256": "x"}}}) == {"adapter"}
    assert changed(RICH, {"labels": {"names.txt": {"lines": ["c"]}}}) == {"postprocess"}

    def with_library(library: str) -> dict[str, str]:
        chain = f"on_unavailable: next, providers: [{{provider: Mine, library: {library}}}, CPU]"
        return identity(RICH.replace("{path: digits.onnx,", f"{{path: digits.onnx, {chain},"))

    assert with_library("a.so") == with_library("a.so")
    assert with_library("a.so")["providers"] != with_library("b.so")["providers"]


def test_a_digest_is_the_same_however_far_a_job_is() -> None:
    one = plan(RICH)
    job = one.steps[-1]
    assert isinstance(job, RunJob)
    state = FileState(path="a.png", size=1, mtime_ns=1)
    later = replace(
        job.input, files=(state,), gone=("b.png",), rows=9, first_row=8, rerun=(state,), rerun_rows=1, rows_before=1
    )
    moved = replace(one, steps=(*one.steps[:-1], replace(job, input=later)))
    assert plan_digest(moved, job.job) == plan_digest(one, job.job)
    others = replace(one, steps=(*one.steps[:-1], replace(job, input=replace(later, patterns=("x",)))))
    assert plan_digest(others, job.job) != plan_digest(one, job.job)


def test_plans_of_earlier_versions_stay_what_they_are() -> None:
    """Fields that came later are not in them, nor in what is made of them: their digests are in outputs and parts."""
    steps = json.loads((Path(__file__).parent.parent / "data/plan_steps.json").read_text())
    assert {one["step"] for one in steps} == {"open-session", "run-job"}
    kept = [{name: value for name, value in one.items() if name != "tried_layouts"} for one in steps]
    assert [encode(decode(STEP, one)) for one in steps] == kept


def test_presets_of_earlier_plans_stay_what_they_are() -> None:
    """Without the folder of pictures, which presets did not have."""
    preset = {
        "kind": "text-to-image", "folder": "/site/sd", "sessions": {"unet": "p.unet"}, "scheduler": {}, "steps": 4,
        "guidance_scale": 1.0, "height": 64, "width": 64, "latents": None, "ports": {}, "adapters": {}, "task": "text-to-image",
        "arguments": {},
    }  # fmt: skip
    assert encode(decode(PlannedPreset, preset)) == preset
    assert decode(PlannedPreset, {**preset, "image_folder": "/site/seen"}).image_folder == "/site/seen"


@pytest.mark.parametrize("thread_layout", [None, "1 session of 1 thread with a caller for each core"])
def test_digests_of_plans_of_earlier_versions_stay_what_they_are(thread_layout: str | None) -> None:
    """With the field that steps had then, and without what came later."""
    text = (Path(__file__).parent.parent / "data/plan_steps.json").read_text()
    decoded = tuple(decode(STEP, one) for one in json.loads(text))
    steps = tuple(replace(one, thread_layout=thread_layout) if isinstance(one, RunJob) else one for one in decoded)
    plan = Plan(
        deployment="d", manifest="m.yaml", folder="/site", profile=None, sets=(), overlays=(), roots=(), facts=(), gates=(),
        steps=steps, finished=(),
    )  # fmt: skip
    assert plan_digest(plan, "j") == "24f76e7decfdbc5580de62c635303b587bbf5dc6e43d20b6ef6d5f4d5ad507a5"
    assert plan_digest(plan, "k") == "47c7304775d2d31c9e0376cddeca6a3daee75e5c0a9d7f5e42098e2a056b8df6"
