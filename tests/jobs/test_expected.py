"""What a job expects of its rows: counted exactly, over interruptions, and compared before the last commit."""

import itertools
import json
import math
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli, Result, read_rows
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.effort import effort
from support.fuse import killed_at
from support.models import scale_model

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.jobs import expected
from ortdeploy.process.memory_limit import MemoryWatch
from ortdeploy.results.expectations import Comparison, Counts, changed_rows

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


def counted(values: list[Any], cuts: list[int], said: dict[str, Any]) -> list[str]:
    """What is missed of values that are counted piece by piece, and the pieces joined, each by way of JSON."""
    whole, joined = Counts({"c": said}), Counts({"c": said})
    for begin, end in zip([0, *cuts], [*cuts, len(values)], strict=True):
        whole.add("c", values[begin:end])
        piece = Counts({"c": said})
        piece.add("c", values[begin:end])
        assert joined.join(json.loads(json.dumps(piece.plain())))
    assert list(joined.missed()) == list(whole.missed())
    return list(whole.missed())


@settings(max_examples=effort(100, 3000), deadline=None)
@given(data=st.data())
def test_what_is_counted_is_exact(data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.one_of(st.none(), st.integers(0, 6).map(float)), min_size=1, max_size=30))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(numbers)), max_size=3)))
    sign = data.draw(st.sampled_from(["<=", "<", ">=", ">"]))
    bound, share = data.draw(st.integers(0, 6)), data.draw(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]))
    wanted = Comparison(f"{sign} {bound}")
    present = sorted(value for value in numbers if value is not None)
    nulls = counted(numbers, cuts, {"nulls": f"{sign} {bound}"})
    assert (not nulls) == wanted.holds(len(numbers) - len(present))
    distinct = counted(numbers, cuts, {"distinct": f"{sign} {bound}"})
    assert (not distinct) == wanted.holds(len(set(present)))
    of_value = counted(numbers, cuts, {"share": {"3.0": f"{sign} {bound * 10}%"}})
    assert (not of_value) == Comparison(f"{sign} {bound * 10}%").holds(present.count(3.0) / len(numbers))
    quantile = counted(numbers, cuts, {"quantile": {str(share): f"{sign} {bound}"}})
    mean = counted(numbers, cuts, {"mean": [1, bound]})
    if not present:
        assert quantile
        assert mean
        return
    assert (not mean) == (1 <= sum(present) / len(present) <= bound)
    # With a share of 0, no value needs to be below: the quantile is lower than all.
    least = -math.inf if share == 0 else present[math.ceil(share * len(present)) - 1]
    assert (not quantile) == wanted.holds(least)


def test_values_of_all_kinds_are_counted() -> None:
    assert counted([np.array([1.0, np.nan]), np.array([2.0])], [], {"nulls": 0})
    assert counted(["", "a", "b"], [], {"nulls": 1, "distinct": ">= 2", "share": {"a": ">= 33%"}}) == []
    assert counted([True, False], [], {"share": {"true": "<= 50%"}}) == []
    assert counted(["1", "2.5"], [], {"mean": [1.75, 1.75]}) == []


@pytest.mark.parametrize("values", [np.array([0, 1, 1, 0.1], np.float32), [0.0, 1.0, 1.0, 0.1], [0, 1, 1, 0.1]])
def test_the_share_of_a_number_is_that_of_all_ways_to_write_it(values: Any) -> None:
    """An alarm of 1.0 that may be "1" in 5% of all rows must not look as if there were none."""
    for written in ("1", "1.0", "1e0"):
        assert counted(values, [], {"share": {written: "<= 49%"}})
        assert counted(values, [], {"share": {written: "<= 50%"}}) == []
    assert counted(values, [], {"share": {"0.1": ">= 25%", "no number": "<= 0%"}}) == []
    assert counted(["01", "1.0", "1"], [], {"share": {"1": "<= 34%"}}) == []  # texts
    large: Any = np.array([2**53, 2**53 + 1])
    assert counted(large, [], {"share": {str(2**53 + 1): "<= 50%"}}) == []


@pytest.mark.parametrize(
    ("said", "share", "size"),
    [({"nulls": "0.7%"}, 7, 1000), ({"share": {"0.0": ">= 93%", "1.0": "<= 0.7e1%"}}, 7, 100)]
    + [({"quantile": {f"0.{share:02}": "< 0.5"}}, 100 - share, 100) for share in (7, 14, 28, 55, 57)],
)
def test_a_share_that_is_just_allowed_is_as_expected(said: dict[str, Any], share: int, size: int) -> None:
    """No double holds 0.07, and 0.07 * 100 is more than 7."""
    some = math.nan if "nulls" in said else 1.0
    assert counted([some] * share + [0.0] * (size - share), [], said) == []
    assert counted([some] * (share + 1) + [0.0] * (size - share - 1), [], said) != []


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


@pytest.mark.quick("csv")
@pytest.mark.parametrize("form", ["jsonl", "parquet", "csv"])
def test_values_count_alike_in_all_formats(tmp_path: Path, cli: Cli, form: str) -> None:
    """CSV has NaN, booleans and texts of any number of lines as text."""
    said = '{of: {nulls: 1, mean: [1, 1], share: {"1": ">= 50%"}}, flag: {share: {"true": "< 50%"}}, note: {nulls: 0, distinct: ">= 4"}}'
    path = deploy(tmp_path, said, form, rows=0)
    path.write_text(path.read_text().replace("[label]", "[of, flag, note]"))
    notes = ["nan", "\n".join(["a,b,c,d,e"] * 150), "1,2,3,4,5\n6,7,8,9,0", "x"]
    of = [math.nan, math.nan, 1.0, 1.0]
    lines = [{"x": [0, 0], "of": of[at], "flag": at % 2 == 0, "note": note} for at, note in enumerate(notes)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    done = cli("apply", path)
    assert "of: 2 of 4 values are null, and <= 1 are expected" in done.words
    assert "flag: 50.0000% of its values are true, and < 50% are expected" in done.words
    path.write_text(path.read_text().replace("nulls: 1", "nulls: 2").replace("< 50%", "<= 50%"))
    done = cli("apply", path)
    assert done.code == 0, done.words


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


@pytest.mark.parametrize("more", [False, True])
def test_rows_that_wait_do_not_run_again_unless_more_have_come(tmp_path: Path, cli: Cli, more: bool) -> None:
    """The last batch is not full, and a table of text does not say how many rows it has."""
    path = deploy(tmp_path, "{y: {mean: [0, 4]}}", rows=22)
    assert cli("apply", path).code == 1
    path.write_text(path.read_text().replace("[0, 4]", "[0, 40]"))
    if more:
        deploy(tmp_path, "{y: {mean: [0, 40]}}", rows=3, name="b")
    done = cli("apply", path)
    assert done.code == 0, done.words
    assert ("part.begun_again" in done.err) == more
    assert [row["y"][0] for row in read_rows(tmp_path / "out")] == [2.0 * at for at in [*range(22), *range(3 * more)]]


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


def test_a_run_of_which_nothing_is_expected_tells_nothing_of_the_one_before(tmp_path: Path, cli: Cli) -> None:
    path = deploy(tmp_path, "{y: {mean: [0, 1]}}")
    assert cli("apply", path).code == 1
    assert "the mean is 19" in cli("status", path).words
    path.write_text(path.read_text().partition("    expect:")[0])  # as a version that was gone back to
    assert cli("apply", path).code == 0
    assert "the mean" not in cli("status", path).words


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


@settings(max_examples=effort(50, 2000), deadline=None)
@given(data=st.data())
def test_a_mean_is_the_same_however_rows_are_divided(data: st.DataObject) -> None:
    """Sums are exact, so that a mean at its bound is on the same side whichever shard counted which rows."""
    values = data.draw(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=30))
    exact = float(sum(map(Fraction, values)) / len(values))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=4)))
    low, high = sorted((exact, data.draw(st.floats(-1e300, 1e300))))
    spread = 2 * math.ulp(exact)  # the sum is rounded, and then what it is divided into
    assert counted(values, cuts, {"mean": [low - spread, high + spread]}) == []


@pytest.mark.parametrize("values", [[math.inf, -math.inf], [1e308] * 20, ["a"]])
def test_a_sum_that_no_number_holds_is_what_is_missed(values: list[Any]) -> None:
    assert counted(values, [1], {"mean": [0, 1]}) == ["c: a value is no number"]


def test_counts_of_something_else_are_not_joined() -> None:
    other = Counts({"c": {"mean": [0, 1]}})
    other.add("c", [7.0])
    counts = Counts({"c": {"mean": [0, 2]}})
    assert not counts.join(json.loads(json.dumps(other.plain())))
    assert not counts.join({})
    assert counts.plain() == Counts({"c": {"mean": [0, 2]}}).plain()


def in_shards(cli: Cli, path: Path, shards: int = 2, *more: str) -> Result:
    plan = path.with_name("plan.json")
    planned = cli("plan", path, "--out", plan)
    assert planned.code == 0, planned.words
    for shard in range(shards):
        done = cli("apply", plan, "--shard", f"{shard}/{shards}", *more)
        assert done.code == 0, done.words
    return cli("finish", plan)


@pytest.mark.quick("jsonl")
@pytest.mark.parametrize("form", ["jsonl", "parquet", "npz", "csv"])
def test_rows_of_shards_are_compared_as_those_of_one_machine(tmp_path: Path, cli: Cli, form: str) -> None:
    good = GOOD if form != "csv" else '{label: {distinct: ">= 2", share: {fault: "<= 20%"}}}'
    done = in_shards(cli, deploy(tmp_path, good, form))
    assert done.code == 0, done.words
    report = json.loads((tmp_path / "out/_run.json").read_text())
    assert report["expectations_missed"] == []
    assert "found" not in json.dumps(report)


def test_shards_that_are_not_as_expected_fail_at_the_end_until_that_is_said_to_be_right(
    tmp_path: Path, cli: Cli
) -> None:
    bad = GOOD.replace("[18, 20]", "[0, 4]")
    path = deploy(tmp_path, bad)
    for done in (in_shards(cli, path), cli("finish", tmp_path / "plan.json"), cli("apply", path), cli("apply", path)):
        assert done.code == 1, done.words
        assert "y: the mean is 19, and 0 to 4 is expected. All parts are committed" in done.words
    assert "the mean is 19" in cli("status", path).words
    missed = ["y: the mean is 19, and 0 to 4 is expected"]
    assert json.loads((tmp_path / "out/_run.json").read_text())["expectations_missed"] == missed
    deploy(tmp_path, GOOD)
    done = cli("apply", path)
    assert done.code == 0, done.words
    assert json.loads((tmp_path / "out/_run.json").read_text())["expectations_missed"] == []
    assert len(read_rows(tmp_path / "out")) == 20
    deploy(tmp_path, '{y: {mean: [18, 20]}, rows: {change: "<= 10%"}}', name="b")
    done = in_shards(cli, path)
    assert done.code == 0, done.words
    deploy(tmp_path, '{y: {mean: [8, 10]}, rows: {change: "<= 10%"}}', name="c", rows=10)
    assert "10 rows are 50.0% off the 20 of the last good run" in in_shards(cli, path).words


def test_shards_count_what_they_make_and_nothing_is_read_twice(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = deploy(tmp_path, GOOD)
    assert cli("plan", path, "--out", tmp_path / "plan.json").code == 0
    assert cli("apply", tmp_path / "plan.json", "--shard", "0/1").code == 0

    def read(*_: object) -> None:
        raise AssertionError("a part was read")

    monkeypatch.setattr(expected, "_count", read)
    assert cli("finish", tmp_path / "plan.json").code == 0


def broken(folder: Path, expect: str) -> Path:
    """A job of 20 rows, of which one cannot be read; the mean of the others is (190 - 4) / 19 * 2."""
    path = deploy(folder, expect)
    lines = (folder / "a.jsonl").read_text().split("\n")
    lines[4] = '{"x": "none", "label": "ok"}'
    (folder / "a.jsonl").write_text("\n".join(lines))
    path.write_text(path.read_text() + "    errors: {max_failed: 5}\n")
    return path


@pytest.mark.parametrize("shards", [0, 2])
def test_rows_that_are_repaired_are_compared_again(tmp_path: Path, cli: Cli, shards: int) -> None:
    path = broken(tmp_path, "{y: {mean: [19.5, 19.6]}}")
    done = in_shards(cli, path, shards) if shards else cli("apply", path)
    assert done.code == 0, done.words
    deploy(tmp_path, "{y: {mean: [19.5, 19.6]}}")
    with (tmp_path / "m.yaml").open("a") as file:
        file.write("    errors: {max_failed: 5}\n")
    done = cli("retry", path, "--job", "run")
    assert done.code == 1, done.words
    assert "y: the mean is 19, and 19.5 to 19.6 is expected" in done.words
    assert len(read_rows(tmp_path / "out")) == 20
    missed = ["y: the mean is 19, and 19.5 to 19.6 is expected"]
    assert json.loads((tmp_path / "out/_run.json").read_text())["expectations_missed"] == missed
    assert "the mean is 19" in cli("status", path).words


def test_a_repair_can_make_a_run_as_expected(tmp_path: Path, cli: Cli) -> None:
    path = broken(tmp_path, "{y: {mean: [19, 19]}, otherwise: warn}")
    assert "the mean is 19.5789" in cli("apply", path).err
    deploy(tmp_path, "{y: {mean: [19, 19]}, otherwise: warn}")
    with (tmp_path / "m.yaml").open("a") as file:
        file.write("    errors: {max_failed: 5}\n")
    done = cli("retry", path, "--job", "run")
    assert done.code == 0, done.words
    assert json.loads((tmp_path / "out/_run.json").read_text())["expectations_missed"] == []
    assert "the mean" not in cli("status", path).words


def on_store(path: Path) -> Path:
    path.write_text(path.read_text().replace("path: out,", 'path: "memory://out",'))
    return path


@pytest.mark.usefixtures("store")
def test_rows_on_a_store_are_compared(tmp_path: Path, cli: Cli) -> None:
    bad = GOOD.replace("[18, 20]", "[0, 4]")
    done = cli("apply", on_store(deploy(tmp_path, bad)))
    assert done.code == 1
    assert "the mean is 19, and 0 to 4 is expected. The last part is not committed" in done.words
    done = cli("apply", on_store(deploy(tmp_path, GOOD)))
    assert done.code == 0, done.words


@pytest.mark.usefixtures("store")
def test_rows_that_shards_have_put_on_a_store_are_compared(tmp_path: Path, cli: Cli) -> None:
    bad = GOOD.replace("[18, 20]", "[0, 4]")
    path = on_store(deploy(tmp_path, bad))
    assert "the mean is 19, and 0 to 4 is expected. All parts are committed" in in_shards(cli, path).words
    assert not list(tmp_path.glob(".ortdeploy/outputs/**/part-*"))
    done = in_shards(cli, on_store(deploy(tmp_path, GOOD)))
    assert done.code == 0, done.words
    deploy(tmp_path, GOOD.replace("[18, 20]", "[8, 10]"), name="b", rows=10)
    done = in_shards(cli, on_store(path))
    assert done.code == 0, done.words


FIXED = "    errors: {max_failed: 5}\n"
SECOND = '{y: {mean: [0, 100]}, rows: {change: "<= 1%"}}'


def kills(folder: Path, every: int) -> Iterator[tuple[Path, int]]:
    """Yield a folder and the event before which what runs in it is killed, until it lives."""
    for event in itertools.count(1, every):
        (folder / str(event)).mkdir()
        yield folder / str(event), event


def check_next_run(path: Path, cli: Cli, rows: int) -> None:
    """The next run is compared with so many rows, and with no others."""
    deploy(path.parent, SECOND, name="z", rows=rows + 5)
    with path.open("a") as file:
        file.write(FIXED)
    assert f"off the {rows:,} of the last good run" in cli("apply", path).words


@pytest.mark.process
@pytest.mark.quick("9")
@pytest.mark.parametrize("every", [9, effort(2, 1)], ids=["9", "more"])
def test_killed_at_every_step_all_rows_are_compared(tmp_path: Path, cli: Cli, every: int) -> None:
    for folder, event in kills(tmp_path, every):
        path = deploy(folder, "{y: {mean: [21, 21]}}", rows=22)
        with killed_at(event) as fuse:
            cli("apply", path)
        done = cli("apply", path)
        assert done.code == 0, (event, done.words)
        assert [row["y"][0] for row in read_rows(folder / "out")] == [2.0 * at for at in range(22)]
        check_next_run(path, cli, 22)
        if not fuse.blew:
            return


@pytest.mark.process
@pytest.mark.quick("60")
@pytest.mark.parametrize("every", [60, effort(20, 9)], ids=["60", "more"])
def test_shards_that_are_killed_at_every_step_are_compared(tmp_path: Path, cli: Cli, every: int) -> None:
    for folder, event in kills(tmp_path, every):
        path = deploy(folder, "{y: {mean: [21, 21]}}", rows=22)
        with killed_at(event) as fuse:
            in_shards(cli, path)
        done = in_shards(cli, path) if not (folder / "plan.json").exists() else finished(cli, folder / "plan.json")
        assert done.code == 0, (event, done.words)
        assert [row["y"][0] for row in read_rows(folder / "out")] == [2.0 * at for at in range(22)]
        check_next_run(path, cli, 22)
        if not fuse.blew:
            return


def finished(cli: Cli, plan: Path) -> Result:
    for shard in range(2):
        done = cli("apply", plan, "--shard", f"{shard}/2")
        assert done.code == 0, done.words
    return cli("finish", plan)


@pytest.mark.process
@pytest.mark.quick("5")
@pytest.mark.parametrize("every", [5, effort(2, 1)], ids=["5", "more"])
def test_a_retry_that_is_killed_at_every_step_is_compared_at_last(tmp_path: Path, cli: Cli, every: int) -> None:
    for folder, event in kills(tmp_path, every):
        path = broken(folder, "{y: {mean: [19.5, 19.6]}}")
        assert cli("apply", path).code == 0
        deploy(folder, "{y: {mean: [19.5, 19.6]}}")
        with path.open("a") as file:
            file.write(FIXED)
        with killed_at(event) as fuse:
            cli("retry", path, "--job", "run")
        cli("retry", path, "--job", "run")
        missed = ["y: the mean is 19, and 19.5 to 19.6 is expected"]
        assert json.loads((folder / "out/_run.json").read_text())["expectations_missed"] == missed, event
        assert "the mean is 19" in cli("status", path).words
        assert len(read_rows(folder / "out")) == 20
        if not fuse.blew:
            return


@pytest.mark.parametrize("known", [True, False])
def test_compacted_parts_are_compared(tmp_path: Path, cli: Cli, known: bool) -> None:
    """Rows of runs that were compared may be joined; those of the next run are compared alone."""
    path = broken(tmp_path, "{y: {mean: [0, 40]}}")
    assert cli("apply", path).code == 0
    deploy(tmp_path, "{y: {mean: [0, 40]}}", name="b", rows=3)
    with path.open("a") as file:
        file.write(FIXED)
    assert cli("apply", path).code == 0
    path.write_text(path.read_text().replace("rows_per_part: 8", "rows_per_part: 64") if known else path.read_text())
    assert cli("compact", path, "--job", "run").code == 0
    deploy(tmp_path, "{y: {mean: [0, 40]}}", name="b", rows=3)
    check_next_run(path, cli, 3)


LIFE = """\
version: 1
models: {m: {path: m.onnx}}
jobs:
  run:
    model: m
    input: {path: "*.jsonl", columns: {x: x}, key: [label]}
    batch: {size: 2}
    output: {path: out, rows_per_part: 4}
    expect: {y: {mean: [0, 20], quantile: {0.5: "<= 12"}}, rows: {change: "<= 60%"}, otherwise: warn}
    errors: {max_failed: 100%}
"""
ROWS = st.lists(st.tuples(st.integers(-10, 20), st.sampled_from([False, False, True])), min_size=1, max_size=7)
MOVE = st.one_of(
    st.tuples(st.just("one"), ROWS),
    st.tuples(st.just("shards"), ROWS),
    st.tuples(st.just("mend"), st.integers(0, 3)),
    st.tuples(st.just("compact"), st.integers(0, 9)),
)


class Life:
    """An output that one machine and shards make in turn; what the last run should have been is worked out here."""

    def __init__(self, folder: Path, cli: Cli) -> None:
        self.folder, self.cli = folder, cli
        self.path = folder / "m.yaml"
        scale_model(folder / "m.onnx", width=1)
        self.path.write_text(LIFE)
        self.runs: list[dict[str, list[tuple[int, bool]]]] = []
        self.good: list[int | None] = [None]

    def run(self, rows: list[tuple[int, bool]], way: str) -> None:
        name = f"{sum(map(len, self.runs)):02d}.jsonl"
        self.write(name, rows)
        self.runs.append({name: rows})
        done = in_shards(self.cli, self.path) if way == "shards" else self.cli("apply", self.path)
        assert done.code == 0, done.words
        self.good.append(self.good[-1])
        self.check()

    def write(self, name: str, rows: list[tuple[int, bool]]) -> None:
        lines = [json.dumps({"x": ["?" if is_broken else x], "label": name}) for x, is_broken in rows]
        (self.folder / name).write_text("\n".join(lines))

    def mend(self, place: int) -> None:
        """Mend a file of any run; only the last run is compared again."""
        broken = [(run, name) for run in self.runs for name, rows in run.items() if any(bad for _, bad in rows)]
        if not broken:
            return
        run, name = broken[place % len(broken)]
        run[name] = [(x, False) for x, _ in run[name]]
        self.write(name, run[name])
        done = self.cli("retry", self.path, "--job", "run")
        assert done.code == 0, done.words
        self.check()

    def check(self) -> None:
        """Compare what the report says with the values of the last run."""
        values = sorted(2 * x for rows in self.runs[-1].values() for x, bad in rows if not bad)
        before = self.good[-2]
        missed = [] if values and 0 <= sum(values) / len(values) <= 20 else ["y: the mean"]
        if not values or values[math.ceil(len(values) / 2) - 1] > 12:
            missed.append("y:")
        if before and abs(len(values) - before) > 0.6 * before:
            missed.append(f"{len(values)} rows")
        self.good[-1] = before if missed else len(values)
        told = json.loads((self.folder / "out/_run.json").read_text())["expectations_missed"]
        assert len(told) == len(missed), (told, missed)
        assert all(one.startswith(other) for one, other in zip(told, missed, strict=True)), (told, missed)
        made = sorted(2.0 * x for run in self.runs for rows in run.values() for x, bad in rows if not bad)
        assert sorted(row["y"][0] for row in read_rows(self.folder / "out")) == made


@pytest.mark.process
@settings(
    max_examples=effort(3, 60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(moves=st.lists(MOVE, min_size=2, max_size=6))
@example(moves=[("one", [(0, False)] * 4), ("one", [(0, False)] * 5 + [(0, True), (0, False)]), ("one", [(0, False)])])
@example(moves=[("one", [(5, False), (30, True)]), ("mend", 0), ("one", [(5, False)])])
@example(moves=[("shards", [(5, False), (30, True)]), ("one", [(1, True)]), ("mend", 0), ("compact", 9), ("mend", 0)])
def test_in_any_life_the_last_run_is_compared(
    tmp_path_factory: pytest.TempPathFactory, cli: Cli, moves: list[tuple[str, Any]]
) -> None:
    life = Life(tmp_path_factory.mktemp("life"), cli)
    for what, more in moves:
        if what in WAYS:
            life.run(more, what)
        elif what == "mend":
            life.mend(more)
        elif life.runs:
            assert cli("compact", life.path, "--job", "run").code == 0


WAYS = ("one", "shards")
