"""What rests on an imitation of ONNX Runtime is assumed of versions that the imitation was not tested with."""

import re
from pathlib import Path

import onnxruntime
import pytest
from support.facts import make_deployment
from support.specs import make_spec

from ortdeploy.diagnostics import Certainty
from ortdeploy.manifest.document import parse_document
from ortdeploy.rules.catalogue import load_rules
from ortdeploy.rules.protocol import check_rules
from ortdeploy.versions import TESTED_WITH, certainty_with

CASES = Path(__file__).parent / "cases"
IMITATING = {
    "predicted-cpu-nodes": ["flagged"],
    "unsupported-operator": ["flagged-domain", "flagged-version"],
}


def certainties(rule: str, case: str, version: str) -> set[Certainty]:
    """How sure a rule is of a case with a version of ONNX Runtime."""
    text = (CASES / rule / f"{case}.yaml").read_text(encoding="utf-8")
    header, _ = parse_document(re.sub(r"^# ", "", text.partition("\n")[0]).encode(), "facts")
    spec = make_spec(text)
    deployment = make_deployment(spec, {**(header.data.get("facts", {}) if header else {}), "version": version})
    return {one.certainty for one in check_rules(load_rules((rule,)), deployment, spec)}


@pytest.mark.parametrize(("rule", "case"), [(rule, case) for rule, cases in IMITATING.items() for case in cases])
def test_findings_are_assumed_of_untested_versions(rule: str, case: str) -> None:
    for version in TESTED_WITH:
        assert certainties(rule, case, f"{version}.1") == {Certainty.MACHINE}
    for version in ("1.99.0", "1.3.1", "2.31.0", "1.310.0", "not installed"):
        assert certainties(rule, case, version) == {Certainty.ASSUMED}


def test_tests_of_the_imitations_run_on_a_version_that_they_name() -> None:
    """tests/graph and tests/deployment compare them with the ONNX Runtime that is installed."""
    assert certainty_with(onnxruntime.__version__) is Certainty.MACHINE


@pytest.mark.parametrize(
    ("case", "certainty"),
    [
        ("flagged-shared", Certainty.MACHINE),
        ("flagged-absent-both", Certainty.ASSUMED),
        ("flagged-absent-openvino", Certainty.ASSUMED),
        ("flagged-absent-qnn", Certainty.ASSUMED),
        ("flagged-absent-next", Certainty.ASSUMED),
    ],
)
def test_devices_of_providers_that_are_not_here_are_assumed(case: str, certainty: Certainty) -> None:
    assert certainties("incompatible-devices", case, "1.31.1") == {certainty}
