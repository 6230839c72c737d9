"""The status document as metrics."""

from msgspec.structs import replace
from support.fleet import CURRENT, WHEN

from ortdeploy.fleet.document import Refused
from ortdeploy.fleet.metrics import HELP, render_metrics


def test_every_metric_is_described_once_and_in_one_piece() -> None:
    said = replace(CURRENT, state="refused", refusal=Refused(summary="Unknown key", since=WHEN, rule="unknown-key"))
    lines = render_metrics(said, "k").splitlines()
    names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert names == list(dict.fromkeys(line.partition("{")[0] for line in lines if not line.startswith("#")))
    assert set(names) == set(HELP), "the refused one has all of them"


def test_names_are_escaped() -> None:
    odd = replace(CURRENT, deployment='a "quoted"\nname')
    first = next(line for line in render_metrics(odd, "k").splitlines() if not line.startswith("#"))
    assert first == r'ortdeploy_deployment_state{deployment="a \"quoted\"\nname",key="k",state="current"} 1'


def test_none_has_the_name_of_a_metric_of_reports() -> None:
    assert all(name.startswith("ortdeploy_deployment_") for name in HELP)
