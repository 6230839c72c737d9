"""Plans to JSON and back."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.facts import make_facts
from support.specs import MANIFEST, make_spec

from ortdeploy.deployment.resolve import resolve
from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.plan.plan_file import dump_plans, is_plan_file, load_plans
from ortdeploy.plan.steps import Fact, FinishedJob, Plan, RunJob
from ortdeploy.planning.make.facts import moved_facts
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


def plan(text: str = RICH, facts: dict[str, Any] | None = None) -> Plan:
    spec = make_spec(text)
    return make_plan(resolve(spec, make_facts(spec, facts)))


def test_a_plan_comes_back_as_itself() -> None:
    assert load_plans(dump_plans([plan(), plan(MANIFEST)], "1")) == (plan(), plan(MANIFEST))


def test_a_plan_carries_labels_contract_and_identity() -> None:
    steps = plan().steps
    assert [type(step).__name__ for step in steps] == ["OpenSession", "LoadAdapter", "RunJob"]
    job = steps[-1]
    assert isinstance(job, RunJob)
    assert job.postprocess[1].options["lines"] == ["a", "b"]
    assert job.inputs[0].limits == (0.0, 1.0)
    assert job.fetch == ("scores",)
    assert job.columns == ("scores", "digit", "best", "name")
    assert set(job.identity) == {
        "model", "adapter", "providers", "columns", "prepare", "batch", "postprocess", "output",
    }  # fmt: skip


def test_a_finished_job_is_no_step() -> None:
    made = plan(MANIFEST, {"outputs": {"read": {"state": "finished"}}})
    assert made.steps == ()
    assert made.finished == (FinishedJob(job="read", output="outbox/read", rows=0),)


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


def test_facts_that_moved_are_named() -> None:
    one, two = Fact(kind="model", name="m", value="1"), Fact(kind="inputs", name="j", value="2")
    assert moved_facts([one, two], [one, two]) == ()
    assert moved_facts([one, two], [one, Fact(kind="inputs", name="j", value="3")]) == (two,)
    assert moved_facts([one, two], [two]) == (one,)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "null",
        '{"format_version": 2, "plans": []}',
        '{"format_version": 3}',
        '{"format_version": 3, "plans": [{}]}',
    ],
)
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(OrtdeployError):
        load_plans(text)


def test_another_format_version_is_refused_by_number() -> None:
    with pytest.raises(OrtdeployError, match="format version 9"):
        load_plans('{"format_version": 9, "plans": []}')


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(place for key, child in children for place in places(child, (*path, key)))]


DOCUMENT = json.loads(dump_plans([plan()], "1"))
PLACES = places(DOCUMENT)[1:]


@given(
    st.sampled_from(PLACES), st.none() | st.integers() | st.text(max_size=3) | st.just([]) | st.just({}) | st.just([1])
)
def test_a_plan_changed_by_hand_is_read_or_refused(place: tuple[Any, ...], value: Any) -> None:
    document = json.loads(json.dumps(DOCUMENT))
    node = document
    for key in place[:-1]:
        node = node[key]
    node[place[-1]] = value
    with contextlib.suppress(OrtdeployError):
        load_plans(json.dumps(document))


def test_a_manifest_is_not_taken_for_a_plan() -> None:
    assert is_plan_file(dump_plans([], "1").encode())
    assert not is_plan_file(MANIFEST.encode())
    assert not is_plan_file(b"{version: 1, models: {}}")
