"""Rows against what they give in other batches: which blocks are looked at, and what a disagreement says."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from support.facts import make_facts
from support.fakes import FakeSession, double
from support.memo_files import memo_files, rewrite
from support.specs import make_spec

from ortdeploy.deployment.resolve import resolve
from ortdeploy.diagnostics import OutOfMemoryError, TransientError
from ortdeploy.files.tuning_cache import KIND, TuningCache
from ortdeploy.plan.steps import RunJob
from ortdeploy.planning.make.plan import make_plan
from ortdeploy.sessions import evidence
from ortdeploy.sessions.evidence import DisagreementError, differing, varying
from ortdeploy.sessions.row_independence import ProvenRows, RowProof
from ortdeploy.sessions.runs import SessionRuns
from ortdeploy.tensors.columns import Array

Function = Callable[[Mapping[str, Array]], Mapping[str, Array]]


@pytest.fixture(autouse=True)
def _only_at_growing_distances(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no look depend on how long runs take."""
    monkeypatch.setattr(evidence, "FLOOR", 1e9)
    monkeypatch.setattr(evidence, "EASY", 0.0)


def job(batch: str = "{size: 4}") -> RunJob:
    spec = make_spec(
        "version: 1\nmodels:\n  m: {path: m.onnx}\n"
        f"jobs:\n  run: {{model: m, input: {{path: data.npy}}, batch: {batch}, output: {{path: out}}}}\n"
    )
    model = {"inputs": {"x": "float32[batch,2]"}, "outputs": {"y": "float32[batch,2]"}}
    source = {"columns": {"array": "float32[rows,2]"}, "rows": 400}
    plan = make_plan(resolve(spec, make_facts(spec, {"models": {"m": model}, "inputs": {"run": source}})))
    return next(step for step in plan.steps if isinstance(step, RunJob))


class Ran:
    """A job's batches of four on one session, whose proof is remembered in a folder if there is one."""

    def __init__(self, function: Function, folder: Path | None = None, step: RunJob | None = None) -> None:
        step = step or job()
        self.session = FakeSession(function)
        self.proof = RowProof(step, ProvenRows(TuningCache(folder)), "session", is_on_cpu=True)
        self.runs = SessionRuns(step, self.session, None, self.proof)
        self.row = 0

    def batch(self, values: Array) -> None:
        first, self.row = self.row, self.row + len(values)
        self.runs.run({"x": values}, len(values), (), lambda place: first + place)

    @property
    def extra(self) -> list[int]:
        """The sizes of the runs that were compared, in batches of another size than four."""
        return [len(feeds["x"]) for feeds in self.session.batches if len(feeds["x"]) != 4]


def normalized(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
    """Batch normalization in training mode."""
    x = feeds["x"]
    return {"y": ((x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + 1e-5)).astype(np.float32)}


def lit(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
    """Mix rows only if one of them is bright."""
    return normalized(feeds) if (feeds["x"] > 100).any() else double(feeds)


BLACK = np.zeros((4, 2), np.float32)
FRAMES = np.arange(8, dtype=np.float32).reshape(4, 2)


def test_a_batch_of_equal_rows_is_no_proof() -> None:
    ran = Ran(normalized)
    for _ in range(3):
        ran.batch(BLACK)
    assert ran.proof.evidence[0].why_not() == "all rows were equal"
    assert len(ran.extra) == 2, "what repeats the rows that were looked at is not run again"
    with pytest.raises(
        DisagreementError, match=r"output y, row 1[2-5]: its results depend on the rows beside it"
    ) as error:
        ran.batch(FRAMES)
    assert error.value.since is None, "every batch before was looked at"


def test_batches_that_are_black_and_then_white_are_mixed_to_show_it() -> None:
    ran = Ran(normalized)
    ran.batch(BLACK)
    with pytest.raises(DisagreementError):
        ran.batch(BLACK + 7)


def test_equal_results_are_no_proof() -> None:
    def dark(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        return {"y": normalized(feeds)["y"] * (feeds["x"] > 0).any()}

    ran = Ran(dark)
    ran.batch(-FRAMES - 1)
    assert ran.proof.evidence[0].why_not() == "all results were equal, or differed by less than the comparison allows"
    with pytest.raises(DisagreementError):
        ran.batch(FRAMES)


def test_results_that_differ_by_less_than_is_allowed_are_no_proof() -> None:
    ran = Ran(lambda feeds: {"y": feeds["x"] * np.float32(1e-7)})
    ran.batch(FRAMES)
    assert not ran.proof.evidence[0].is_proven
    ran.batch(FRAMES * 1e7)
    assert ran.proof.evidence[0].is_proven


def test_rows_that_nan_of_another_has_reached_are_not_compared() -> None:
    """With `on_nan: fail` they run again without it; its row fails. What mixes rows otherwise is still found."""

    def reached(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        return {"y": feeds["x"] * 2 + feeds["x"].mean(axis=0) * np.float32(1e-9)}

    step = job()
    step = replace(step, errors=replace(step.errors, on_nan="fail", check_finite=("y",)))
    ran = Ran(reached, step=step)
    dark = FRAMES.copy()
    dark[2, 0] = np.nan
    for values in (dark, FRAMES, dark, FRAMES + 8, dark):
        ran.batch(values)
    ran.runs.finish()
    assert ran.proof.evidence[0].is_proven
    partly = Ran(lambda feeds: {"y": np.where(feeds["x"] < 0, np.nan, normalized(feeds)["y"])}, step=step)
    with pytest.raises(DisagreementError, match=r"output y, row [123]: its results depend on the rows beside it"):
        partly.batch(FRAMES - 1)


def test_an_input_that_differs_for_the_first_time_is_looked_at_at_once() -> None:
    """Column x is proven by rows; a second input has been the same for all of them."""
    assert varying({"x": FRAMES, "z": BLACK}, {}, None) == {"x": 1}
    assert varying({"x": FRAMES, "z": FRAMES}, {}, None, but={"x"}) == {"z": 1}
    assert varying({"z": BLACK + 1}, {}, None, first=({"z": BLACK[:1]}, {})) == {"z": 0}


def test_what_is_proven_is_looked_at_now_and_then_and_at_the_end() -> None:
    ran = Ran(double)
    for number in range(100):
        ran.batch(FRAMES + number)
    before = ran.proof.evidence[0].plain()
    assert 4 <= before["looks"] <= 8, "at growing distances"
    assert before["since"] is not None
    ran.runs.finish()
    after = ran.proof.evidence[0].plain()
    assert (after["looks"], after["since"], after["not_proven"]) == (before["looks"] + 1, None, None)


def test_short_runs_leave_time_to_look_at_each_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "EASY", 1.0)
    ran = Ran(lit)
    for number in range(20):
        ran.batch(FRAMES + number)
    ran.batch(FRAMES)
    with pytest.raises(DisagreementError) as error:
        ran.batch(np.array([[0, 1], [2, 3], [500, 1], [4, 5]], np.float32))
    assert error.value.since is None, "each batch before was looked at"


def test_a_later_disagreement_names_the_row_and_says_since_when_nobody_looked() -> None:
    ran = Ran(lit)
    for _ in range(5):
        ran.batch(FRAMES)
    ran.batch(FRAMES * 100)
    with pytest.raises(DisagreementError, match=r"row 2[0-3]") as error:
        ran.runs.finish()
    assert error.value.since is not None
    assert error.value.since <= 20


@pytest.mark.parametrize("error", [TransientError("busy"), OutOfMemoryError("too much"), MemoryError()])
def test_an_error_that_may_pass_leaves_the_proof_to_the_next_batch(error: Exception) -> None:
    failures = [error]

    def busy(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        if len(feeds["x"]) != 4 and failures:
            raise failures.pop()
        return normalized(feeds)

    ran = Ran(busy)
    ran.batch(FRAMES)
    assert not failures
    assert "could not run again" in (ran.proof.evidence[0].why_not() or "")
    with pytest.raises(DisagreementError) as found:
        ran.batch(FRAMES)
    assert found.value.since == 0, "the first batch passed without a look"


def test_a_proof_that_never_comes_about_is_said(tmp_path: Path) -> None:
    def busy(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        if len(feeds["x"]) != 4:
            raise TransientError("busy")
        return double(feeds)

    ran = Ran(busy, tmp_path)
    ran.batch(FRAMES)
    ran.runs.finish()
    plain = ran.proof.evidence[0].plain()
    assert plain["not_proven"] == "rows could not run again: busy"
    assert plain["since"] == 0
    assert not list(tmp_path.iterdir())


def test_only_a_proof_on_rows_and_results_that_differed_is_remembered(tmp_path: Path) -> None:
    Ran(double, tmp_path).batch(BLACK)
    assert not list(tmp_path.iterdir())
    first = Ran(double, tmp_path)
    first.batch(FRAMES)
    assert sorted(first.extra) == [1, 1, 1, 3]
    second = Ran(double, tmp_path)
    second.batch(FRAMES)
    assert second.extra == []
    assert second.proof.evidence[0].plain()["remembered"]
    for path in memo_files(tmp_path, KIND):
        rewrite(path, "proven")  # as an older ortdeploy has done, on any rows
    third = Ran(double, tmp_path)
    third.batch(FRAMES)
    assert third.extra


def test_a_remembered_proof_is_looked_at_again_at_the_end(tmp_path: Path) -> None:
    Ran(double, tmp_path).batch(FRAMES)
    later = Ran(normalized, tmp_path)  # the same digests, and other rows would show it
    later.batch(FRAMES)
    with pytest.raises(DisagreementError):
        later.runs.finish()


def squeezing(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
    """A Squeeze without axes: a single row loses its axis."""
    return {"y": np.squeeze(double(feeds)["y"])}


def test_a_row_that_loses_its_axis_alone_is_compared_in_a_batch_of_two() -> None:
    ran = Ran(squeezing)
    ran.batch(FRAMES)
    assert ran.proof.evidence[0].is_proven
    mixing = Ran(lambda feeds: {"y": np.squeeze(normalized(feeds)["y"])})
    with pytest.raises(DisagreementError):
        mixing.batch(FRAMES)


def test_a_graph_with_a_fixed_batch_is_compared_with_copies_too() -> None:
    """A softmax over the rows gives the same in any order; copies of one row show it."""

    def softmax(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        exponential = np.exp(feeds["x"])
        return {"y": exponential / exponential.sum(axis=0)}

    step = job("{size: 4, last: pad}")
    fixed = replace(step, inputs=tuple(replace(one, shape=(4, *(one.shape or ())[1:])) for one in step.inputs))
    ran = Ran(softmax, step=fixed)
    with pytest.raises(DisagreementError):
        ran.batch(np.array([[1, 2], [3, 4], [1, 2], [3, 4]], np.float32))
    assert not ran.extra


def test_a_batch_that_is_filled_up_does_not_hide_that_results_depend_on_its_size() -> None:
    ran = Ran(lambda feeds: {"y": feeds["x"] * np.float32(len(feeds["x"]))}, step=job("{size: 4, last: pad}"))
    with pytest.raises(DisagreementError):
        ran.batch(FRAMES)


def test_rows_differ_by_their_values_of_any_type() -> None:
    assert differing(np.array([np.nan, np.nan])) is None
    assert differing(np.array([np.inf, np.inf])) is None
    assert differing(np.array([np.inf, np.nan])) == 1
    assert differing(np.array(["a", "a", "b"], object)) == 2
    assert differing(np.array([[1, 2], [1, 2], [1, 3]])) == 2
    assert differing([np.zeros(2), np.zeros(3)]) == 1
    assert differing([{"a": 1.0}, {"a": 1.0}]) is None
    assert differing([{"a": 1.0}, {"a": 2.0}]) == 1
    assert differing(np.array([1.0, 1.04]), (0.05, 0.0)) is None
    assert differing(np.array([1.0, 1.06]), (0.05, 0.0)) == 1
    assert differing(np.zeros((0, 2))) is None
    assert differing(np.zeros((2, 0))) is None


def labels(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
    """A label for each row, and another one for a row alone whose first number is 13: two floats are almost equal."""
    found = feeds["x"][:, 0].astype(np.int64)
    return {"y": np.where((len(found) == 1) & (found == 13), 99, found)}


@pytest.mark.parametrize("beside", [True, False])
def test_a_tie_of_a_later_row_does_not_fail_the_job(monkeypatch: pytest.MonkeyPatch, beside: bool) -> None:
    monkeypatch.setattr(evidence, "EASY", 1.0 if beside else 0.0)
    ran = Ran(labels)
    ran.batch(FRAMES)
    ran.batch(FRAMES + 7 if beside else np.full((4, 2), 13, np.float32))
    ran.batch(FRAMES + 20)
    ran.runs.finish()
    assert ran.proof.evidence[0].is_proven
