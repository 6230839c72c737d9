"""Generated wrong wirings of right pipelines: a plan refuses each of them, at the step that is wrong."""

import copy
import json
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import effort
from support.facts import make_deployment
from support.specs import make_spec

from ortdeploy.diagnostics import Diagnostic, Severity, has_errors
from ortdeploy.manifest.document import parse_document
from ortdeploy.manifest.schema_check import check_document
from ortdeploy.rules.catalogue import DEPLOYMENT_RULES, SPEC_RULES, load_rules
from ortdeploy.rules.protocol import check_rules

Step = dict[str, Any]
FACTS = {
    "models": {
        "detector": {"inputs": {"page": "float32[batch,1,64,64]"}, "outputs": {"heat": "float32[batch,1,64,64]"}},
        "digits": {"inputs": {"image": "float32[batch,1,8,8]", "scale": "float32[]"}, "outputs": {"scores": "float32[batch,10]"}},
        "yolo": {"inputs": {"x": "float32[batch,3,64,64]"}, "outputs": {"raw": "float32[batch,6,84]"}},
        "vad": {
            "inputs": {"input": "float32[batch,96]", "state": "float32[2,batch,4]", "sr": "int64[]"},
            "outputs": {"p": "float32[batch,1]", "stateN": "float32[2,batch,4]"},
        },
    },
    "inputs": {
        "run": {
            "format": "npz",
            "columns": {
                "page": "float32[rows,1,64,64]", "image": "float32[rows,64,64,1]", "x": "float32[rows,3,64,64]",
                "samples": "float32[rows,960]", "words": "string[rows]",
            },
        }
    },
}  # fmt: skip

PIPELINES: list[list[Step]] = [
    [
        {"run": "detector", "in": {"page": "$page"}, "out": {"heat": "heat"}},
        {"do": "boxes_from_heatmap", "in": {"heat": "$heat", "threshold": 0.5}, "out": "boxes"},
        {"do": "crop", "in": {"image": "$image", "boxes": "$boxes", "size": [8, 8]}, "out": "crops"},
        {
            "each": "$crops",
            "as": "crop",
            "steps": [
                {"do": "layout", "in": {"x": "$crop", "layout": "NCHW", "from": "NHWC"}, "out": "picture"},
                {"run": "digits", "in": {"image": "$picture", "scale": 0.5}, "out": {"scores": "scores"}},
            ],
            "collect": {"scores": "last"},
        },
    ],
    [
        {"run": "yolo", "in": {"x": "$x"}, "out": {"raw": "raw"}},
        {"do": "yolo_decode", "in": {"x": "$raw", "version": "v8"}, "out": ["boxes", "scores", "class"]},
        {"do": "nms", "in": {"boxes": "$boxes", "scores": "$scores"}, "out": ["kept", "best", "which"]},
        {"op": "Transpose", "in": {"data": "$raw"}, "attributes": {"perm": [0, 2, 1]}, "out": "turned"},
        {"op": "Split", "in": {"input": "$turned", "split": [4, 2]}, "attributes": {"axis": 2}, "out": {"outputs": ["b", "last"]}},
    ],
    [
        {"do": "windows", "in": {"x": "$samples", "size": 96}, "out": ["w", "start"]},
        {
            "each": "$w",
            "as": "one",
            "state": {"h": "$after"},
            "steps": [
                {"run": "vad", "in": {"input": "$one", "state": "$h", "sr": 16000}, "out": {"p": "p", "stateN": "after"}}
            ],
            "collect": {"p": "last"},
        },
    ],
]  # fmt: skip


def check(steps: list[Step]) -> tuple[Diagnostic, ...]:
    """Return what is said of a pipeline; step N stands on line N + 10."""
    lines = [
        "version: 1",
        *("models: {detector: {path: d.onnx}, digits: {path: i.onnx}, yolo: {path: y.onnx}, vad: {path: v.onnx}}",),
        "jobs:",
        "  run: {pipeline: p, input: {path: x.npz}, output: {path: out}}",
        *[""] * 2,
        "pipelines:",
        "  p:",
        "    steps:",
        *(f"      - {json.dumps(step)}" for step in steps),
        "    outputs: {last: $last}",
    ]
    text = "\n".join(lines) + "\n"
    document, _ = parse_document(text.encode(), "m.yaml")
    assert document is not None
    refused = check_document(document)
    if refused:
        return refused
    spec = make_spec(text)
    found = check_rules(load_rules(SPEC_RULES), spec, spec)
    if has_errors(found):
        return found
    deployment = make_deployment(spec, FACTS)
    return found + check_rules(load_rules(DEPLOYMENT_RULES), deployment, spec)


def test_the_pipelines_are_right() -> None:
    for steps in PIPELINES:
        assert not [one for one in check(steps) if one.severity is Severity.ERROR]


def _wired(steps: list[Step]) -> list[Step]:
    """Return the steps that take values by name, those inside of each too."""
    return [one for step in steps for one in ([step] if "in" in step else _wired(step["steps"]))]


def _values(step: Step) -> list[str]:
    return sorted(key for key, value in step["in"].items() if isinstance(value, str) and value.startswith("$"))


def _misspelt(draw: st.DrawFn, word: str) -> str:
    place = draw(st.integers(0, len(word)))
    return word[:place] + draw(st.sampled_from("qzQ")) + word[place:]


def _no_such_value(draw: st.DrawFn, step: Step) -> None:
    key = draw(st.sampled_from(_values(step)))
    step["in"][key] = f"${_misspelt(draw, step['in'][key][1:])}"


def _no_such_input(draw: st.DrawFn, step: Step) -> None:
    key = draw(st.sampled_from(_values(step)))
    step["in"][_misspelt(draw, key)] = step["in"].pop(key)


def _nothing_feeds(draw: st.DrawFn, step: Step) -> None:
    del step["in"][draw(st.sampled_from(_values(step)))]


def _text(draw: st.DrawFn, step: Step) -> None:
    step["in"][draw(st.sampled_from(_values(step)))] = "$words"


def _another_shape(draw: st.DrawFn, step: Step) -> None:
    """Feed recordings, which no step but the one that cuts them takes."""
    step["in"][draw(st.sampled_from(_values(step)))] = "$samples"


def _no_such_output(draw: st.DrawFn, step: Step) -> None:
    if isinstance(step["out"], dict):
        key = draw(st.sampled_from(sorted(step["out"])))
        step["out"][_misspelt(draw, key)] = step["out"].pop(key)
    else:
        step["out"] = ([step["out"]] if isinstance(step["out"], str) else step["out"]) + [f"more{n}" for n in range(9)]


def _made_twice(_draw: st.DrawFn, step: Step) -> None:
    out = step["out"]
    if isinstance(out, dict):
        step["out"] = {key: ["raw2", "raw2"] if isinstance(name, list) else name for key, name in out.items()}
    step["in"] = {**step["in"], "unheard_of": 1}


def _not_taken(step: Step) -> bool:
    """Return whether recordings, or what is made of any value, do not fit a step."""
    return step.get("do") not in {"windows", "layout"} and "op" not in step


WRONG: list[tuple[Callable[[st.DrawFn, Step], None], Callable[[Step], bool]]] = [
    (_no_such_input, lambda _step: True),
    (_nothing_feeds, lambda _step: True),
    (_text, lambda step: step.get("op") not in {"Transpose", "Split"} and step.get("do") not in {"layout", "windows"}),
    (_another_shape, _not_taken),
    (_no_such_output, lambda _step: True),
    (_made_twice, lambda step: "do" in step or "run" in step),
    (_no_such_value, lambda _step: True),
]
"""Ways to make a step wrong, and the steps that they make wrong."""


@st.composite
def wrong_pipeline(draw: st.DrawFn) -> tuple[list[Step], int]:
    """Return steps of which one is wrong, and the place of the step that is, or holds, it."""
    steps = copy.deepcopy(draw(st.sampled_from(PIPELINES)))
    spoil, may = draw(st.sampled_from(WRONG))
    place = draw(st.integers(0, len(steps) - 1))
    chosen = [step for step in _wired([steps[place]]) if may(step)]
    if not chosen:
        spoil, chosen = _no_such_input, _wired([steps[place]])
    spoil(draw, draw(st.sampled_from(chosen)))
    return steps, place


OF_THE_JOB = {"missing-column", "input-shape-mismatch", "input-type-mismatch"}


@settings(max_examples=effort(15, 200), deadline=None, derandomize=True)
@given(wrong_pipeline())
def test_a_wrong_wiring_is_refused_at_its_step(pipeline: tuple[list[Step], int]) -> None:
    """Or, if it takes an input of the pipeline, where the job feeds that."""
    steps, place = pipeline
    errors = [one for one in check(steps) if one.severity is Severity.ERROR]
    assert errors, steps
    lines = {one.span.line for one in errors}
    assert place + 10 in lines or all(one.rule in OF_THE_JOB and one.span.line == 4 for one in errors), (
        steps,
        [(one.span.line, one.rule, one.detail) for one in errors],
    )
    assert all(one.detail.rstrip().endswith((".", "?")) for one in errors), [one.detail for one in errors]
