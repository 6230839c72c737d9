"""The status document as metrics."""

from msgspec.structs import replace

from ortdeploy.fleet.document import Clock, Device, Document, Job, Profile, Refused, Version, Versions, Wanted
from ortdeploy.fleet.metrics import HELP, render_metrics

WHEN = "2026-11-28T10:00:00+00:00"
CURRENT = Document(
    format_version=1,
    deployment='a "quoted"\nname',
    device=Device(name="line-4"),
    version=Version(commit="a" * 40),
    wanted=Wanted(same=True, state_reached="current"),
    profile=Profile(name=None, reason=None, facts={}, since=WHEN),
    state="current",
    refusal=None,
    jobs=(Job(name="run", status="done", committed=20, left=0, last_row=WHEN, waiting=1, oldest_waiting=WHEN),),
    versions=Versions(ortdeploy="1", onnxruntime="1.32.0", python="3.11", providers={}),
    clock=Clock(now=WHEN, synchronised=True),
    sequence=1,
    last_look=WHEN,
    next_look=WHEN,
)


def test_every_metric_is_described_once_and_in_one_piece() -> None:
    said = replace(CURRENT, state="refused", refusal=Refused(summary="Unknown key", since=WHEN, rule="unknown-key"))
    lines = render_metrics(said, "k").splitlines()
    names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert names == list(dict.fromkeys(line.partition("{")[0] for line in lines if not line.startswith("#")))
    assert set(names) == set(HELP), "the refused one has all of them"


def test_names_are_escaped() -> None:
    first = next(line for line in render_metrics(CURRENT, "k").splitlines() if not line.startswith("#"))
    assert first == r'ortdeploy_deployment_state{deployment="a \"quoted\"\nname",key="k",state="current"} 1'


def test_none_has_the_name_of_a_metric_of_reports() -> None:
    assert all(name.startswith("ortdeploy_deployment_") for name in HELP)
