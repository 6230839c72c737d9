"""Schema errors in the manifest's words, all at once, each at its place."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from support.specs import MANIFEST

from ortdeploy.diagnostics import Diagnostic
from ortdeploy.manifest import schema_check
from ortdeploy.manifest.document import parse_document
from ortdeploy.manifest.schema_check import check_document
from ortdeploy.schemas import bundled_schema, schema_names, schema_text
from ortdeploy.sources.catalogue import SOURCES
from ortdeploy.transforms.catalogue import POSTPROCESS, PREPARE


def problems(text: str) -> list[Diagnostic]:
    document, found = parse_document(text.encode(), "m.yaml")
    assert document is not None
    assert not found
    return sorted(check_document(document), key=lambda d: (d.span.line, d.span.column))


def complaint(line: str) -> tuple[str, int, str]:
    """The only complaint about a model with one more line."""
    found = problems(f"version: 1\nmodels:\n  m:\n    path: m.onnx\n    {line}\n")
    assert len(found) == 1, found
    return found[0].rule, found[0].span.column, found[0].detail


def test_the_smallest_manifest_is_right() -> None:
    assert problems("version: 1\nmodels: {m: {path: m.onnx}}\n") == []
    assert problems(MANIFEST) == []


def test_all_problems_come_at_once() -> None:
    text = "version: 2\nname: a b\nmodles: {}\nmodels: {m: {}}\njobs: {j: {model: m, input: {path: x}}}\n"
    rules = [(d.rule, d.span.line) for d in problems(text)]
    assert rules == [
        ("value-not-allowed", 1), ("value-not-allowed", 2), ("unknown-key", 3), ("missing-key", 4), ("missing-key", 5),
    ]  # fmt: skip


def test_the_one_boolean_that_a_key_takes_is_named() -> None:
    assert "probe must be false or a mapping, not true." in complaint("probe: true")[2]


def test_an_unknown_key_offers_the_nearest() -> None:
    rule, column, detail = complaint("provider: [CPU]")
    assert (rule, column) == ("unknown-key", 5)
    assert 'Did you mean "providers"?' in detail


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("until: 90m", "Seconds, or a number with ms, s, min or h. For example: 2h."),
        ("limits: {memory: 512M}", "Bytes, or a number with B, KB, MB, GB, KiB, MiB or GiB. For example: 512MiB."),
        ("limits: {memory: [512]}", "a whole number or text, not a list. For example: 512MiB."),
        ('hours: {from: 22, to: "06:00"}', 'must be text, not 22. For example: "22:00".'),
        ("pause: {above: {temperature: 80}}", "must be text, not 80. For example: 80C."),
        (
            "pause: {above: {temperature: 80F}}",
            'is the text "80F", which is not of the form that is wanted. For example: 80C.',
        ),
        (
            "errors: {max_failed: 5 %}",
            "a share such as 0.1%. One more and the job fails. Default: 0. For example: 0.1%.",
        ),
    ],
)
def test_text_of_a_wrong_form_is_told_with_the_form_and_an_example(line: str, told: str) -> None:
    (found,) = problems(f"{MANIFEST.rstrip()}\n    {line}\n")
    assert found.detail.endswith(told)


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("{CUDA: {device_id: 0}}", "Write {provider: CUDA, options: {device_id: …}}."),
        ("{CUDAExecutionProvider: {}}", "Write {provider: CUDAExecutionProvider, options: {…}}."),
        ("{provider: cuda, device_id: 0}", "It is an option of CUDA. Write {provider: cuda, options: {device_id: …}}."),
        ("{provider: CUDA, devise: 0}", 'Did you mean "device"?'),
        ("{provider: Mine, device_id: 0}", 'Did you mean "device"?'),
        ("{mine: {a: 1}}", 'must be text, or a mapping with the key "provider".'),
        ("{CUDA: {a: 1}, CPU: {}}", 'must be text, or a mapping with the key "provider".'),
        ("[CUDA]", "must be text or a mapping, not a list."),
    ],
)
def test_options_of_a_provider_in_the_wrong_place_are_told_the_right_one(entry: str, told: str) -> None:
    assert complaint(f"providers: [{entry}, CPU]")[2].endswith(told)


def test_a_provider_instead_of_a_list_of_them_is_told_as_a_list() -> None:
    detail = complaint("providers: {CUDA: {device_id: 0}}")[2]
    assert detail.endswith("Write [{provider: CUDA, options: {device_id: …}}].")


@pytest.mark.parametrize(
    ("chain", "told"),
    [
        ("[{TensorRT: {trt_fp16_enable: true}}, CPU]", "Write {provider: TensorRT, options: {trt_fp16_enable: …}}."),
        ("{CUDA: {device_id: 0}}", "Write [{provider: CUDA, options: {device_id: …}}]."),
    ],
)
def test_options_in_a_chain_of_its_own_are_told_their_place_too(chain: str, told: str) -> None:
    (found,) = problems(f"version: 1\nproviders: {{fast: {chain}}}\nmodels: {{m: {{path: m.onnx, providers: fast}}}}\n")
    assert found.detail.endswith(told)


@pytest.mark.parametrize("line", ["session: {intra_op_num_threads: {cpu: 1}}", "inputs: {x: {shape: {cpu: 1}}}"])
def test_a_provider_is_not_offered_where_none_stands(line: str) -> None:
    assert "provider" not in complaint(line)[2]


@pytest.mark.parametrize("step", ["RunJob", "OpenSession", "LoadAdapter"])
def test_a_step_of_a_plan_that_is_only_named_is_no_step(step: str) -> None:
    document, found = parse_document(f"plans: [{{steps: [{step}]}}]\n".encode(), "p.json")
    assert document is not None
    assert not found
    assert any("must be a mapping" in one.detail for one in check_document(document, "plan"))


def test_a_provider_in_a_device_file_is_told_nothing_of_options() -> None:
    document, _ = parse_document(b"runtime: {providers: [{CUDA: {device_id: 0}}]}\n", "d.yaml")
    assert document is not None
    assert not any("options" in one.detail for one in check_document(document, "device"))


def test_a_secret_among_misplaced_options_is_not_told() -> None:
    found = problems("version: 1\nmodels: {m: {path: m.onnx, providers: [{Azure: {azure.auth_key: hush}}]}}\n")
    assert not any("hush" in one.detail for one in found)


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ("grayscale", "Write {grayscale: true}."),
        ("scale", "Write {scale: 0.00392}."),
        ("resize", "Write {resize: …}."),
        ("grayscal", 'must be a mapping, not the text "grayscal".'),
    ],
)
def test_a_step_that_is_only_named_is_told_how_to_be_written(step: str, told: str) -> None:
    (found,) = problems(f"{MANIFEST.rstrip()}\n    prepare: {{x: [{step}]}}\n")
    assert found.detail.endswith(told)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("float", "float32"),
        ("tensor(double)", "float64"),
        ("Half", "float16"),
        ("long", "int64"),
        ("tensor(int64)", "int64"),
        ("flot32", "float32"),
        ("FP16", "float16"),
    ],
)
def test_an_element_type_by_its_other_name_is_the_one_that_is_meant(written: str, meant: str) -> None:
    assert complaint(f"inputs: {{x: {{dtype: {written}}}}}")[2].endswith(f'Did you mean "{meant}"?')


def test_a_mapping_that_is_written_as_one_value_is_told_with_an_example() -> None:
    (found,) = problems(f"{MANIFEST.rstrip()}\n    batch: 64\n")
    assert found.detail.endswith('must be a mapping, not 64. For example: {"size": 64}.')


def test_an_unknown_operation_lists_those_that_there_are_once() -> None:
    (found,) = problems(
        "version: 1\nmodels: {m: {path: m.onnx}}\npipelines:\n  p:\n    steps:\n      - {do: nmss, in: {x: $x}, out: y}\n"
        "    outputs: {y: $y}\n"
    )
    assert (found.rule, found.span.line) == ("value-not-allowed", 6)
    assert found.detail.count("unletterbox") == 1
    assert found.detail.endswith('Did you mean "nms"?')


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("session.disable_cpu_fallback", "session.disable_cpu_ep_fallback"),
        ("session.intra_op.allow_spining", "session.intra_op.allow_spinning"),
        ("sesion.disable_prepacking", "session.disable_prepacking"),
    ],
)
def test_a_misspelt_session_config_key_is_refused(key: str, nearest: str) -> None:
    """ONNX Runtime accepts any key without a word."""
    rule, _, detail = complaint(f"session: {{config: {{{key}: 1}}}}")
    assert rule == "unknown-key"
    assert f'Did you mean "{nearest}"?' in detail


@pytest.mark.parametrize("name", ["../weights.bin", "/etc/weights.bin", "a\\\\b.bin", ".."])
@pytest.mark.parametrize(
    "key",
    [
        "session.optimized_model_external_initializers_file_name",
        "ep.context_model_external_initializers_file_name",
    ],
)
def test_a_file_that_is_written_beside_another_has_a_name_without_a_folder(key: str, name: str) -> None:
    """ONNX Runtime joins it to the other file's folder, and writes wherever that leads."""
    rule, _, detail = complaint(f'session: {{config: {{{key}: "{name}"}}}}')
    assert rule == "value-not-allowed"
    assert "For example: weights.bin" in detail


def test_options_of_plugin_providers_are_config_keys_too() -> None:
    config = "{ep.openvinoexecutionprovider.load_config: x, session.set_denormal_as_zero: '1', ep.context_enable: true}"
    assert problems(f"version: 1\nmodels: {{m: {{path: m.onnx, session: {{config: {config}}}}}}}\n") == []


def test_a_missing_key_is_at_the_key_of_what_lacks_it() -> None:
    found = problems("version: 1\nmodels:\n  one: {}\n")
    assert [(d.rule, d.span.line, d.span.column) for d in found] == [("missing-key", 3, 3)]
    assert "model file" in found[0].detail


@pytest.mark.parametrize(
    ("line", "column", "words"),
    [
        ("sha256: yes", 13, 'write "yes" in quotes'),
        ("sha256: on", 13, "YAML reads the bare word on as true"),
        ("session: {intra_op_num_threads: off}", 37, 'write "off" in quotes'),
        ("session: {enable_mem_pattern: 'yes'}", 35, "Write true or false"),
        ("session: {intra_op_num_threads: two}", 37, 'must be a whole number, not the text "two"'),
        ("session: {intra_op_num_threads: 1.5}", 37, "must be a whole number, not 1.5"),
        ("session: {intra_op_num_threads: 2.0}", 37, "must be a whole number, not 2.0"),
        ("session:", 5, "must be a mapping, not empty (null)"),
        ("providers: 3", 16, "must be text or a list, not 3"),
        ("providers: [3]", 17, "must be text or a mapping, not 3"),
        ("session: {config: {session.dynamic_block_base: x}}", 52, 'must be a whole number, not the text "x"'),
        ("inputs: {x: {shape: 3}}", 25, "must be a list, not 3"),
    ],
)
def test_a_wrong_type_says_what_is_wanted_and_what_is_there(line: str, column: int, words: str) -> None:
    rule, found, detail = complaint(line)
    assert rule == "wrong-type"
    assert found == column or line == "session:"
    assert words in detail


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("on_unavailable: nxt", 'allowed are fail, next. Did you mean "next"?'),
        ("session: {intra_op_num_threads: -1}", "is -1; at least 0 is allowed"),
        ("session: {log_severity_level: 9}", "is 9; at most 4 is allowed"),
        ("sha256: abc", "64 hexadecimal digits"),
        ("inputs: {x: {range: [1]}}", "has 1 items; it takes 2"),
        ("session: {config: {session.intra_op.allow_spinning: maybe}}", "allowed are true, false, 1, 0"),
        ("session: {config: {session.intra_op.spin_backoff_max: 65}}", "at most 64 is allowed"),
        ("session: {config: {session.load_model_format: onxx}}", "allowed are ORT"),
        ("providers: []", "has 0 items; it takes at least 1"),
        ("inputs: {x: {dtype: float}}", "float16"),
    ],
)
def test_a_value_that_is_not_allowed_says_what_is(line: str, words: str) -> None:
    rule, _, detail = complaint(line)
    assert rule == "value-not-allowed"
    assert words in detail


def test_a_value_of_the_wrong_type_is_not_measured_too() -> None:
    (found,) = problems("version: 1\npipelines: {p: {preset: text-to-image, from: sd, height: 0.5}}\n")
    assert (found.rule, found.detail) == ("wrong-type", "pipelines.p.height must be a whole number, not 0.5.")


def step(text: str, stage: str = "prepare: {x: [%s]}") -> list[tuple[str, str]]:
    found = problems(MANIFEST + "    " + stage % text + "\n")
    return [(d.rule, d.detail) for d in found]


def test_an_unknown_step_offers_the_nearest() -> None:
    ((rule, detail),) = step("{rezise: [8, 8]}")
    assert rule == "unknown-key"
    assert 'Did you mean "resize"?' in detail


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("session_options: {}", 'Did you mean "session"?'),
        ("device: cuda", 'Did you mean "providers"?'),
        ("provider_options: {}", "providers: [{provider: …, options: {…}}]."),
        ("session: {graph_optimization_level: ORT_ENABLE_ALL}", 'Did you mean "all"?'),
        ("inputs: {x: {shape: [-1, 3]}}", "Any size is a name, such as batch, or null."),
        ("providers: [[CUDA, {device_id: 0}]]", "Write {provider: CUDA, options: {device_id: …}}."),
    ],
)
def test_what_other_tools_call_it_is_what_is_meant(line: str, meant: str) -> None:
    assert complaint(line)[2].endswith(meant)


def test_steps_by_the_names_of_other_tools_and_two_steps_in_one_item() -> None:
    ((_, detail),) = step("{transpose: [2, 0, 1]}")
    assert 'Did you mean "layout"?' in detail
    ((_, detail),) = step("{rgb: true, resize: [8, 8]}")
    assert "rgb is a step of its own" in detail
    (found,) = problems(MANIFEST + "    preprocess: {}\n")
    assert 'Did you mean "prepare"?' in found.detail


def test_a_word_of_a_step_offers_that_step_before_one_that_only_looks_alike() -> None:
    ((_, detail),) = step("{crop: [8, 8]}")
    assert 'Did you mean "center_crop"?' in detail


def test_a_known_step_is_judged_as_that_step() -> None:
    ((rule, detail),) = step("{resize: [8, 8], metod: nearest}")
    assert rule == "unknown-key"
    assert 'Did you mean "method"?' in detail
    assert [rule for rule, _ in step("{resize: [8]}")] == ["value-not-allowed"]
    assert [rule for rule, _ in step("{}")] == ["missing-key"]
    assert [rule for rule, _ in step("resize")] == ["wrong-type"]
    assert [rule for rule, _ in step("{argmax: x}", "postprocess: [%s]")] == ["missing-key"]
    assert step("{normalize: {mean: 0.5, std: [1, 2]}}") == []


@pytest.mark.parametrize("name", schema_names())
def test_a_schema_is_a_schema_with_words_for_people(name: str) -> None:
    schema = json.loads(schema_text(name))
    Draft202012Validator.check_schema(schema)
    assert schema["title"]
    assert schema["description"]


SHOWS = {"const", "default", "enum", "examples"}
"""What an editor offers for a key, or shows beside it."""


def keys_of_manifests(node: Any, at: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """The schemas of all keys that a manifest may have, by their places; those of conditions are left out."""
    inner = enumerate(node) if isinstance(node, list) else node.items() if isinstance(node, dict) else ()
    for name, value in inner:
        if name in {"examples", "x-relations", "if", "else", "providerEntry"}:
            continue
        if name == "properties":
            yield from ((f"{at}/{key}", one) for key, one in value.items() if isinstance(one, dict))
        yield from keys_of_manifests(value, f"{at}/{name}")


def resolved(schema: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    name = part.get("$ref", "").rpartition("#/$defs/")[2]
    return {**resolved(schema, schema["$defs"][name]), **part} if name else part


def test_every_key_of_a_manifest_has_words_and_something_that_editors_show() -> None:
    schema = json.loads(schema_text("deployment"))
    keys = dict(keys_of_manifests(schema))
    assert len(keys) > 450
    for at, key in keys.items():
        known = resolved(schema, key)
        choices = [resolved(schema, one) for one in (*known.get("anyOf", ()), *known.get("oneOf", ()))]
        is_argument_of_a_step = at.endswith("/then/in")  # `in` itself has words and examples, for every step
        is_plain = known.get("type") == "boolean" or "x-secret" in known or is_argument_of_a_step
        assert {"title", "description"} & known.keys(), at
        assert is_plain or SHOWS & known.keys() or any("examples" in one for one in choices), at


def test_every_key_of_a_manifest_is_read() -> None:
    """What options and steps have is handed on by name; all else is named by the room that reads the manifest."""
    schema = json.loads(schema_text("deployment"))
    handed_on = {"session", "run", "sessionConfig", "runConfig", "expect", *PREPARE, *POSTPROCESS}
    parts = {"": schema, **{name: part for name, part in schema["$defs"].items() if name not in handed_on}}
    room = Path(schema_check.__file__).parent
    text = "".join(path.read_text(encoding="utf-8") for path in room.glob("*.py"))
    of_formats = {("input", one.name) for form in SOURCES for one in SOURCES[form].SETTINGS}
    keys = [(name, key) for name, part in parts.items() for key in part.get("properties", {})]
    assert len(keys) > 100
    assert [(name, key) for name, key in keys if f'"{key}"' not in text and (name, key) not in of_formats] == []


def parts_with_examples(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        if isinstance(node.get("examples"), list):
            yield node
        for inner in node.values():
            yield from parts_with_examples(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from parts_with_examples(inner)


def test_every_example_in_the_schema_is_allowed_by_it() -> None:
    schema = json.loads(bundled_schema("deployment"))
    parts = list(parts_with_examples(schema))
    assert len(parts) > 10
    for part in parts:
        for example in part["examples"]:
            Draft202012Validator({**part, "$defs": schema["$defs"]}).validate(example)
