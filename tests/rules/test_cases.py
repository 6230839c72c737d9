"""A file under cases/ is a test: exactly its marked lines are flagged, by rule; `clean*` files by none."""

import json
import re
from pathlib import Path

import pytest
from support.facts import make_deployment
from support.specs import make_spec

from ortdeploy.diagnostics import Diagnostic, has_errors
from ortdeploy.manifest.document import parse_document
from ortdeploy.rules.catalogue import (
    DEPLOYMENT_RULES,
    OPENING_RULES,
    PREFLIGHT_RULES,
    RULES,
    SPEC_RULES,
    load_rules,
)
from ortdeploy.rules.protocol import check_rules
from ortdeploy.views.text import render_diagnostics

CASES = Path(__file__).parent / "cases"
FILES = sorted(CASES.glob("*/*.yaml"))


def expected(text: str) -> set[tuple[int, str]]:
    marks = ((number, re.search(r"# expect: (.+)", line)) for number, line in enumerate(text.splitlines(), 1))
    return {(number, rule.strip()) for number, mark in marks if mark for rule in mark[1].split(",")}


def check(text: str) -> tuple[Diagnostic, ...]:
    first = text.partition("\n")[0]
    header, _ = (
        parse_document(first.removeprefix("# ").encode(), "facts") if first.startswith("# facts:") else (None, ())
    )
    spec = make_spec(text)
    found = check_rules(load_rules(SPEC_RULES), spec, spec)
    if has_errors(found):
        return found
    deployment = make_deployment(spec, header.data["facts"] if header else None)
    return found + check_rules(load_rules((*DEPLOYMENT_RULES, *OPENING_RULES, *PREFLIGHT_RULES)), deployment, spec)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_exactly_the_marked_lines_are_flagged(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    found = check(text)
    details = "\n".join(f"{d.span.line}: {d.rule}: {d.detail}" for d in found)
    assert {(d.span.line, d.rule) for d in found} == expected(text), details


def test_what_holds_for_all_components_of_a_preset_is_said_once() -> None:
    (found,) = check((CASES / "undefined-provider-chain/flagged_preset.yaml").read_text())
    assert found.detail.startswith('Model "p.text_encoder" names the chain "gpu", which is not under providers:.')
    assert found.detail.endswith('The same holds for "p.unet" and "p.vae_decoder".')


def test_an_output_that_is_named_like_a_file_is_told_a_folder_of_the_same_store() -> None:
    (*_, last) = check((CASES / "output-named-as-file/flagged.yaml").read_text())
    assert "write output: {path: s3://bucket/c, format: csv}." in last.detail


def test_a_limit_without_a_unit_is_told_to_be_bytes() -> None:
    text = (CASES / "over-memory-limit/flagged.yaml").read_text().replace("100MiB", "600")
    assert "its limit is 600 bytes, which is how a number without a unit counts" in " ".join(
        d.detail for d in check(text)
    )


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_cases_that_trip_it_and_near_misses_that_do_not(rule: str) -> None:
    flagged = [path for path in FILES if path.parent.name == rule and path.stem.startswith("flagged")]
    clean = [path for path in FILES if path.parent.name == rule and path.stem.startswith("clean")]
    assert flagged
    assert clean
    assert all(f"# expect: {rule}" in path.read_text(encoding="utf-8") for path in flagged)
    assert not any("# expect" in path.read_text(encoding="utf-8") for path in clean)


def test_every_folder_of_cases_is_a_rule() -> None:
    assert {path.parent.name for path in FILES} == set(RULES)


CHAINS = [
    ("[OpenVINO, DirectML, CPU]", "[OpenVINOExecutionProvider, DmlExecutionProvider, CPUExecutionProvider]", []),
    (
        "[{provider: OpenVINO, device: GPU, options: {load_config: {GPU: {PERFORMANCE_HINT: LATENCY}}}}, TensorRT, CUDA, Dml]",
        "[TensorrtExecutionProvider, CUDAExecutionProvider, DmlExecutionProvider, CPUExecutionProvider]",
        ["OpenVINOExecutionProvider 0 GPU Intel GPU"],
    ),
    (
        "[OpenVINO, WebGpu, CPU]",
        "[CPUExecutionProvider]",
        ["OpenVINOExecutionProvider 0 CPU Intel CPU shared=Shared", "WebGpuExecutionProvider 0 GPU M G memory=Buf"],
    ),
]


@pytest.mark.parametrize(("chain", "providers", "devices"), CHAINS)
def test_the_block_that_a_refusal_writes_is_accepted_when_pasted(
    chain: str, providers: str, devices: list[str]
) -> None:
    text = f"""\
# facts: {{providers: {providers}, devices: {json.dumps(devices)}}}
version: 1
models:
  digits: {{path: digits.onnx, PROVIDERS}}
jobs:
  read: {{model: digits, input: {{path: data.npy}}, output: {{path: outbox/read}}}}
"""
    refused = check(text.replace("PROVIDERS", f"providers: {chain}"))
    (shown,) = {render_diagnostics([one], color=False) for one in refused if "Isolate them" in one.detail}
    block = shown[shown.index("sessions: [") : shown.index(" opens the first")]
    accepted = check(text.replace("PROVIDERS", block))
    assert not has_errors(accepted), accepted
    (model,) = make_spec(text.replace("PROVIDERS", block)).models
    written = [entry.options for session in model.sessions for entry in session.chain if entry.options]
    assert ("load_config" in chain) == bool(written)
