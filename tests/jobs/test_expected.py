"""What a job expects of its rows: counted exactly, over interruptions, and compared before the last commit."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli, read_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import effort
from support.models import scale_model

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.process.memory_limit import MemoryWatch
from ortdeploy.results.expectations import Chunk, Comparison, changed_rows, checks_of

MANIFEST = """\
version: 1
models: {{m: {{path: m.onnx}}}}
jobs:
  run:
    model: m
    input: {{path: "*.jsonl", columns: {{x: x}}, key: [label]}}
    batch: {{size: 4}}
    output: {{path: out, format: {form}, rows_per_part: 8}}
    expect: {expect}
"""


def deploy(folder: Path, expect: str, form: str = "jsonl", rows: int = 20, name: str = "a") -> Path:
    """A job whose results y are [0, 0], [2, 2], …, and whose labels are fault for each fifth row."""
    scale_model(folder / "m.onnx", width=2)
    lines = [json.dumps({"x": [at, at], "label": "ok" if at % 5 else "fault"}) for at in range(rows)]
    (folder / f"{name}.jsonl").write_text("\n".join(lines))
    (folder / "m.yaml").write_text(MANIFEST.format(expect=expect, form=form))
    return folder / "m.yaml"


def counted(values: list[Any], cuts: list[int], said: dict[str, Any]) -> list[str | None]:
    checks = checks_of({"c": said})["c"]
    for begin, end in zip([0, *cuts], [*cuts, len(values)], strict=True):
        for check in checks:
            check.add(Chunk(values[begin:end]))
    return [check.missed() for check in checks]


@settings(max_examples=effort(100, 3000), deadline=None)
@given(data=st.data())
def test_what_is_counted_is_exact(data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.one_of(st.none(), st.integers(0, 6).map(float)), min_size=1, max_size=30))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(numbers)), max_size=3)))
    sign = data.draw(st.sampled_from(["<=", "<", ">=", ">"]))
    bound, share = data.draw(st.integers(0, 6)), data.draw(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]))
    wanted = Comparison(f"{sign} {bound}")
    present = sorted(value for value in numbers if value is not None)
    (nulls,) = counted(numbers, cuts, {"nulls": f"{sign} {bound}"})
    assert (nulls is None) == wanted.holds(len(numbers) - len(present))
    (distinct,) = counted(numbers, cuts, {"distinct": f"{sign} {bound}"})
    assert (distinct is None) == wanted.holds(len(set(present)))
    (of_value,) = counted(numbers, cuts, {"share": {"3.0": f"{sign} {bound * 10}%"}})
    assert (of_value is None) == Comparison(f"{sign} {bound * 10}%").holds(present.count(3.0) / len(numbers))
    (quantile,) = counted(numbers, cuts, {"quantile": {str(share): f"{sign} {bound}"}})
    (mean,) = counted(numbers, cuts, {"mean": [1, bound]})
    if not present:
        assert quantile is not None
        assert mean is not None
        return
    assert (mean is None) == (1 <= sum(present) / len(present) <= bound)
    # With a share of 0, no value needs to be below: the quantile is lower than all.
    least = -math.inf if share == 0 else present[math.ceil(share * len(present)) - 1]
    assert (quantile is None) == wanted.holds(least)


def test_values_of_all_kinds_are_counted() -> None:
    assert counted([np.array([1.0, np.nan]), np.array([2.0])], [], {"nulls": 0}) != [None]
    assert counted(["", "a", "b"], [], {"nulls": 1, "distinct": ">= 2", "share": {"a": ">= 33%"}}) == [None] * 3
    assert counted([True, False], [], {"share": {"true": "<= 50%"}}) == [None]
    assert counted(["1", "2.5"], [], {"mean": [1.75, 1.75]}) == [None]


def test_rows_are_compared_with_the_last_good_run() -> None:
    said = {"rows": {"change": "<= 50%"}}
    assert changed_rows(said, 40, None) is None
    assert changed_rows(said, 60, 40) is None
    assert changed_rows(said, 61, 40) == "61 rows are 52.5% off the 40 of the last good run, and <= 50% is expected"
    assert changed_rows(said, 19, 40) is not None


GOOD = (
    '{y: {nulls: 0, mean: [18, 20], quantile: {0.5: "<= 19", "1.0": "<= 38"}}, '
    'label: {distinct: ">= 2", share: {fault: "<= 20%"}}}'
)


@pytest.mark.quick("jsonl", "parquet")
@pytest.mark.parametrize("form", ["jsonl", "parquet", "npz"])
def test_a_job_that_is_as_expected_ends_well(tmp_path: Path, cli: Cli, form: str) -> None:
    done = cli("apply", deploy(tmp_path, GOOD, form))
    assert done.code == 0, done.words
    assert json.loads((tmp_path / "out/_run.json").read_text())["expectations_missed"] == []


def test_a_job_that_is_not_as_expected_leaves_its_last_part_until_that_is_said_to_be_right(
    tmp_path: Path, cli: Cli
) -> None:
    path = deploy(tmp_path, GOOD.replace("[18, 20]", "[0, 4]").replace("20%", "5%"))
    for _ in range(2):
        done = cli("apply", path)
        assert done.code == 1
        assert "y: the mean is 19, and 0 to 4 is expected" in done.words
        assert "label: 20.0000% of its values are fault, and <= 5% are expected" in done.words
        assert len(read_rows(tmp_path / "out")) == 16
        assert "the mean is 19" in cli("status", path).words
    deploy(tmp_path, GOOD)
    done = cli("apply", path)
    assert done.code == 0, done.words
    assert len(read_rows(tmp_path / "out")) == 20


def test_rows_of_an_apply_that_was_interrupted_count(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(_: MemoryWatch) -> bool:
        raise OrtdeployError("enough")

    deploy(tmp_path, GOOD, name="b", rows=10)
    path = deploy(tmp_path, GOOD.replace("[18, 20]", "[15.6, 15.7]"), rows=20)  # 30 rows, whose sum is 190 + 45
    for _ in range(6):
        with monkeypatch.context() as patch:
            patch.setattr(MemoryWatch, "is_near", end)
            assert "enough" in cli("apply", path).words
    done = cli("apply", path)
    assert done.code == 0, done.words


def test_a_warning_ends_nothing_and_the_report_has_it(tmp_path: Path, cli: Cli) -> None:
    path = deploy(tmp_path, "{y: {mean: [0, 4]}, otherwise: warn}")
    done = cli("apply", path)
    assert done.code == 0, done.words
    missed = ["y: the mean is 19, and 0 to 4 is expected"]
    assert json.loads((tmp_path / "out/_run.json").read_text())["expectations_missed"] == missed
    assert "rows.unexpected" in done.err
    assert "the mean is 19" in cli("status", path).words


def test_each_run_is_compared_by_its_own_rows(tmp_path: Path, cli: Cli) -> None:
    path = deploy(tmp_path, '{y: {mean: [19, 19]}, rows: {change: "<= 50%"}}')
    assert cli("apply", path).code == 0
    deploy(tmp_path, '{y: {mean: [19, 19]}, rows: {change: "<= 50%"}}', name="b")
    assert cli("apply", path).code == 0
    deploy(tmp_path, '{y: {mean: [8, 10]}, rows: {change: "<= 40%"}}', name="c", rows=10)
    done = cli("apply", path)
    assert done.code == 1
    assert "10 rows are 50.0% off the 20 of the last good run, and <= 40% is expected" in done.words
    assert "the mean" not in done.words


def test_shards_are_refused_in_words(tmp_path: Path, cli: Cli) -> None:
    path = deploy(tmp_path, GOOD)
    assert cli("plan", path, "--out", tmp_path / "plan.json").code == 0
    done = cli("apply", tmp_path / "plan.json", "--shard", "0/2")
    assert done.code != 0
    assert "expect: is compared with all rows before the last one is committed" in done.words
