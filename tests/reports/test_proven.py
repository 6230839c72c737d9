"""What is proven over sessions, runs and shards, and which rows a disagreement puts in doubt."""

from typing import Any

import pytest
from msgspec.structs import replace
from support.facts import make_facts
from support.specs import make_spec

from ortdeploy.deployment.resolve import resolve
from ortdeploy.plan.steps import OpenSession, PlannedProvider, RunJob
from ortdeploy.planning.make.plan import make_plan
from ortdeploy.reports.proven import (
    added,
    check_doubt,
    check_proven,
    first_in_doubt,
    proven_by,
    reported,
    sum_of_proven,
    without,
)
from ortdeploy.sessions.evidence import CPU, ROWS, DisagreementError, Evidence


def plain(
    rows: int = 3, looks: int = 1, since: int | None = None, why: str | None = None, *, remembered: bool = False
) -> dict[str, Any]:
    return {"rows": rows, "looks": looks, "since": since, "not_proven": why, "remembered": remembered}


def evidence(row: int, *, agrees: bool) -> Evidence:
    one = Evidence()
    one.note_block(4, 0.1, ["x"], ["y"])
    if agrees:
        one.agree(3, ["x", "y"], (0.0, 0.0))
    else:
        one.pass_by(row)
    return one


def test_what_one_of_several_sessions_proves_is_proven_and_rows_of_any_are_in_doubt() -> None:
    found = proven_by([{ROWS: [evidence(0, agrees=True)], CPU: []}, {ROWS: [evidence(8, agrees=False)]}])
    assert found == {ROWS: plain(since=8)}
    assert proven_by([{ROWS: [Evidence()]}]) == {}


def test_shards_add_up() -> None:
    one, other = {ROWS: plain(why="all rows were equal")}, {ROWS: plain(rows=4, since=7), CPU: plain()}
    assert sum_of_proven(one, other) == {ROWS: plain(rows=7, looks=2, since=7), CPU: plain()}
    assert sum_of_proven({}, {}) == {}


def test_what_sessions_have_compared_for_earlier_parts_is_not_counted_again() -> None:
    before, now = {CPU: plain(rows=16, looks=1)}, {CPU: plain(rows=48, looks=3, since=70), ROWS: plain()}
    assert without(now, before) == {CPU: plain(rows=32, looks=2, since=70), ROWS: plain()}
    assert without(now, {}) == now


def test_a_look_of_a_later_run_covers_the_rows_before_it() -> None:
    earlier = {ROWS: plain(since=40)}
    assert added(earlier, {}) == earlier
    assert added(earlier, {ROWS: plain(rows=0, looks=0, since=60)})[ROWS]["since"] == 40
    assert added(earlier, {ROWS: plain()})[ROWS] == plain(rows=6, looks=2)
    assert added(earlier, {ROWS: plain(since=80)})[ROWS]["since"] == 80
    assert earlier == {ROWS: plain(since=40)}


@pytest.mark.parametrize(
    ("since", "kind", "proven", "first"),
    [
        (None, ROWS, {}, None),
        (8, ROWS, {}, 8),
        (8, ROWS, {ROWS: plain(since=4)}, 4),
        (None, ROWS, {ROWS: plain(since=4)}, 4),  # an earlier run ended before it looked
        (None, ROWS, {CPU: plain(since=4)}, None),
        (8, CPU, {ROWS: plain(since=4)}, 8),
    ],
)
def test_rows_in_doubt_are_those_since_the_last_look_of_the_same_kind(
    since: int | None, kind: str, proven: dict[str, dict[str, Any]], first: int | None
) -> None:
    assert first_in_doubt(DisagreementError("other", since, kind), proven) == first


@pytest.mark.parametrize(
    "damaged",
    [[], {ROWS: 3}, {ROWS: {**plain(), "rows": "3"}}, {ROWS: {**plain(), "since": 1.5}}, {ROWS: {"rows": 3}}],
)
def test_what_was_not_written_so_is_damage(damaged: Any) -> None:
    with pytest.raises(ValueError, match="what is proven of a job is"):
        check_proven(damaged)
    check_proven({ROWS: plain(), CPU: plain(since=3, why="all rows were equal", remembered=True)})


@pytest.mark.parametrize("damaged", [[], {}, {"first": 1}, {"first": 1, "last": "2"}, {"first": 1, "last": True}])
def test_rows_in_doubt_that_were_not_written_so_are_damage(damaged: Any) -> None:
    with pytest.raises(ValueError, match="the rows in doubt are"):
        check_doubt(damaged)
    check_doubt({"first": 1, "last": 2})


def test_the_report_says_how_near_the_cpu_results_had_to_be_and_why() -> None:
    spec = make_spec(
        "version: 1\nmodels: {digits: {path: digits.onnx}}\n"
        "jobs: {j: {model: digits, input: {path: i.npy}, output: {path: o}}}\n"
    )
    job = make_plan(resolve(spec, make_facts(spec, {})))
    (step,) = (one for one in job.steps if isinstance(one, RunJob))
    (on_cpu,) = (one for one in job.steps if isinstance(one, OpenSession))
    chain = replace(on_cpu.candidates[0], providers=(PlannedProvider(name="CUDAExecutionProvider", options={}),))
    opening = replace(on_cpu, candidates=(chain,), probe=(0.05, 0.001), computes=("CUDA may multiply in TF32.",))
    statistics = {"proven": {"cpu_comparison": plain(8, 2)}}
    found = reported(step, [opening], statistics)["cpu_comparison"]
    assert found == {**plain(8, 2), "rtol": 0.05, "atol": 0.001, "because": ["CUDA may multiply in TF32."]}
    unchecked = reported(step, [replace(opening, probe=None)], {})["cpu_comparison"]
    assert "because" not in unchecked
    assert list(reported(step, [on_cpu], {})) == ["row_independence"]
