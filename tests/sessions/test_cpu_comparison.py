"""Outputs against the CPU provider's."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from support.facts import make_facts
from support.fakes import FakeSession, double, refuse_negative
from support.specs import make_spec

from ortdeploy.deployment.resolve import resolve
from ortdeploy.diagnostics import OutOfMemoryError, ProviderFailedError
from ortdeploy.feeds.prepared import Prepared
from ortdeploy.plan.steps import Plan, PlannedSession, RunJob
from ortdeploy.planning.make.plan import make_plan
from ortdeploy.results.rows import Block
from ortdeploy.sessions import evidence
from ortdeploy.sessions.cpu_comparison import CpuComparison
from ortdeploy.sessions.evidence import DisagreementError
from ortdeploy.sessions.opening import OpenedSession
from ortdeploy.sessions.runs import SessionRuns, are_equal
from ortdeploy.streaming.hooks import Hooks
from ortdeploy.streaming.row_runner import RowRunner
from ortdeploy.tensors.columns import Array

Function = Callable[[Mapping[str, Array]], Mapping[str, Array]]
PROBE = CpuComparison(session=FakeSession(double), rtol=0.05, atol=0.001)
EXPECTED = np.array([[1.0, -20.0, 3.0]], dtype=np.float32)


def compare(value: np.ndarray, expected: np.ndarray = EXPECTED) -> None:
    PROBE.compare(["y"], [value], [expected])


def test_what_lower_precision_changes_passes() -> None:
    compare(EXPECTED)
    compare(EXPECTED.astype(np.float16).astype(np.float32))
    compare(EXPECTED + np.float32(0.9))
    compare(np.empty((0, 3), np.float32), np.empty((0, 3), np.float32))


@pytest.mark.parametrize(
    "value",
    [
        np.zeros_like(EXPECTED),
        EXPECTED + np.float32(1.1),
        EXPECTED[:, :2],
        EXPECTED.astype(np.float64),
        np.where(EXPECTED > 2, np.nan, EXPECTED).astype(np.float32),
    ],
)
def test_what_is_wrong_does_not(value: np.ndarray) -> None:
    with pytest.raises(ProviderFailedError, match="output y is not what the CPU provider computes"):
        compare(value)


def test_the_message_names_the_format_that_the_provider_computes_in() -> None:
    probe = CpuComparison(session=FakeSession(double), rtol=0.05, atol=0.001, because=("It computes in float16.",))
    with pytest.raises(ProviderFailedError, match=r"probe: allows 1\. It computes in float16$"):
        probe.compare(["y"], [EXPECTED + np.float32(1.1)], [EXPECTED])


def test_an_input_without_axes_is_compared_as_one_value() -> None:
    """Models of a pipeline may take one, such as the rate of a recording or the step of a sampler."""
    probe = CpuComparison(session=FakeSession(double), rtol=0.05, atol=0.001)
    for step in range(3):
        feeds = {"t": np.array(step, np.float32), "x": np.ones((2, 3), np.float32) + step}
        values = [feeds["x"] * 2]
        probe.look(["y"], feeds, values, lambda *_: values, (), number=int, seconds=0.1)  # noqa: B023  called at once
    probe.finish(lambda *_: values)
    assert probe.evidence.is_proven
    assert probe.evidence.varied == {"t", "x", "y"}
    assert probe.evidence.rows == 6


def test_the_cpu_session_is_used_once_and_let_go() -> None:
    probe = CpuComparison(session=FakeSession(double), rtol=0, atol=0)
    assert probe.take() is not None
    assert probe.take() is None
    assert probe.session is None


def test_a_batch_that_is_refused_does_not_stand_for_the_proof() -> None:
    """The first batch has a bad row; the provider answers with zeros, which the next one that runs must show."""

    def zeros(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        return {"y": refuse_negative(feeds)["y"] * np.float32(0)}

    probe = CpuComparison(session=FakeSession(refuse_negative), rtol=0.05, atol=0.001)
    job = next(step for step in plan_of_one_job().steps if isinstance(step, RunJob))
    opened = OpenedSession(candidate=PlannedSession(name="m", providers=()), session=FakeSession(zeros), probe=probe)
    rows = RowRunner(job, opened, Hooks(stop=lambda: False, prove=lambda _: None))
    values = np.array([[-1, -1], [5, 5]], dtype=np.float32)
    with pytest.raises(ProviderFailedError, match="is not what the CPU provider computes"):
        rows.run(Prepared(block=Block(start=0, count=2, rows=[0, 1], columns={"array": values}, failed=[]), feeds=None))


def plan_of_one_job() -> Plan:
    spec = make_spec(
        "version: 1\nmodels:\n  m: {path: m.onnx}\n"
        "jobs:\n  run: {model: m, input: {path: data.npy}, batch: {size: 2}, output: {path: out}}\n"
    )
    model = {"inputs": {"x": "float32[batch,2]"}, "outputs": {"y": "float32[batch,2]"}}
    source = {"columns": {"array": "float32[rows,2]"}, "rows": 2}
    return make_plan(resolve(spec, make_facts(spec, {"models": {"m": model}, "inputs": {"run": source}})))


def test_nan_where_the_cpu_has_nan_passes() -> None:
    expected = np.array([np.nan, 1.0, np.inf], dtype=np.float32)
    compare(expected.copy(), expected)


def test_whole_numbers_may_flip_now_and_then() -> None:
    expected = np.arange(100)
    nearly = np.where(expected < 5, 0, expected)
    compare(nearly, expected)
    with pytest.raises(ProviderFailedError, match="only 50% of its values are equal"):
        compare(np.where(expected < 51, 0, expected), expected)


def test_an_adapters_effect_is_seen_in_sequences_and_maps_too() -> None:
    array = np.ones(2, np.float32)
    assert are_equal([array, {"a": array}], [array, {"a": array}])
    assert not are_equal([array, {"a": array}], [array, {"a": 2 * array}])
    assert not are_equal([array], [array, array])
    assert not are_equal({"a": 1.0}, {"b": 1.0})
    assert not are_equal({"a": 1.0}, {"a": 2.0})


@pytest.fixture(autouse=True)
def _only_at_growing_distances(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no look depend on how long runs take."""
    monkeypatch.setattr(evidence, "FLOOR", 1e9)
    monkeypatch.setattr(evidence, "EASY", 0.0)


class Compared:
    """Batches of two on a session that is compared with a CPU session."""

    def __init__(self, provider: Function, *, is_lean: bool = False) -> None:
        self.cpu = FakeSession(double)
        self.probe = CpuComparison(session=self.cpu, rtol=0.05, atol=0.001, is_lean=is_lean)
        job = next(step for step in plan_of_one_job().steps if isinstance(step, RunJob))
        self.runs = SessionRuns(job, FakeSession(provider), self.probe)
        self.row = 0

    def batch(self, *values: float) -> None:
        first, self.row = self.row, self.row + len(values)
        array = np.array([[value, value] for value in values], np.float32)
        self.runs.run({"x": array}, len(values), (), lambda place: first + place)


def clipped(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
    """What a provider gives that cuts numbers at 100."""
    return {"y": np.minimum(double(feeds)["y"], np.float32(100))}


def test_a_blank_batch_is_no_proof_of_a_provider() -> None:
    compared = Compared(lambda feeds: {"y": double(feeds)["y"] * np.float32(0)})
    for _ in range(3):
        compared.batch(0, 0)
    assert compared.probe.evidence.why_not() == "all rows were equal"
    assert len(compared.cpu.batches) == 1, "what repeats the rows that were compared is not run again"
    with pytest.raises(ProviderFailedError, match="is not what the CPU provider computes"):
        compared.batch(1, 2)


def test_batches_of_one_row_differ_from_each_other() -> None:
    compared = Compared(double)
    compared.batch(0)
    assert not compared.probe.evidence.is_proven
    compared.batch(7)
    assert compared.probe.evidence.is_proven


def test_a_provider_is_compared_now_and_then_and_at_the_end() -> None:
    compared = Compared(clipped)
    for number in range(40):
        compared.batch(number, number / 2)
    assert len(compared.cpu.batches) <= 8
    compared.batch(1, 900)
    with pytest.raises(DisagreementError, match=r"row 80, or one behind it in its batch: output y") as error:
        compared.runs.finish()
    assert error.value.since is not None, "rows have passed since the last comparison"
    assert error.value.since <= 80


def test_with_little_memory_the_cpu_session_is_let_go_of_once_the_provider_is_proven() -> None:
    compared = Compared(double, is_lean=True)
    held = []
    for values in ((0, 0), (1, 2), (3, 4)):
        compared.batch(*values)
        held.append(compared.probe.session is not None)
    assert held == [True, False, False]
    assert len(compared.cpu.batches) == 2


def test_a_comparison_that_has_no_memory_is_made_with_the_next_batch() -> None:
    compared = Compared(clipped)
    failures = [OutOfMemoryError("too much")]

    def short(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        if failures:
            raise failures.pop()
        return double(feeds)

    compared.cpu.function = short
    compared.batch(400, 1)
    assert compared.probe.evidence.why_not() == "rows could not run again: too much"
    with pytest.raises(DisagreementError) as error:
        compared.batch(400, 2)
    assert error.value.since == 0
