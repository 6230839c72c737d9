"""What jobs take is measured on their first rows where there is a limit, remembered, and judged from then on."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli, run_process
from msgspec import Struct
from onnx import TensorProto, helper
from support.memo_files import memo_files, memo_values
from support.models import save_model, scale_model

from ortdeploy.cli.children import memory
from ortdeploy.facts.memory import Way
from ortdeploy.plan import memory_notes
from ortdeploy.plan.selection import run_jobs
from ortdeploy.process.child import Answer
from ortdeploy.results.results import Status

MIB = 1024 * 1024

MANIFEST = """\
version: 1
models:
  m: {path: m.onnx, session: {intra_op_num_threads: 1}}
jobs:
  run:
    model: m
    input: {path: data.npy}
    batch: {size: 64}
    output: {path: out, format: npy}
    limits: {memory: 1000MiB}
"""


class Forks:
    """Stands for the forks that measure: `takes` are the bytes of a batch in each way to run."""

    def __init__(self, takes: Callable[[Way, int], int | str]) -> None:
        self.takes = takes
        self.asked: list[tuple[Way, int]] = []

    def __call__(self, run: Any, **_settings: Any) -> Answer:
        tried, plan, job, _ = run.args
        (step,) = run_jobs(tried.of_plan(plan, job))
        assert step.limits.forecast is not None
        assert step.limits.memory is not None
        way = step.limits.forecast.measured[0].way
        self.asked.append((way, step.batching.run_size))
        size = self.takes(way, step.batching.run_size)
        if isinstance(size, str):
            return Answer([{"status": "failed", "reason": size, "committed": 0, "peak": 1, "halved": 0}], 0, False, "")
        if size < 0:
            return Answer([], size, False, "")
        halved = int(size > step.limits.memory * 0.9)
        return Answer([{"status": str(Status.DONE), "reason": None, "committed": 1, "peak": size, "halved": halved}], 0, False, "")  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    scale_model(tmp_path / "m.onnx")
    np.save(tmp_path / "data.npy", np.ones((256, 4), np.float32))
    (tmp_path / "m.yaml").write_text(MANIFEST)
    return tmp_path


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> "Install":
    def install(takes: Callable[[Way, int], int | str]) -> Forks:
        forks = Forks(takes)
        monkeypatch.setattr(memory, "ask_fork", forks)
        return forks

    monkeypatch.setattr(memory_notes, "peak_memory", lambda: None)  # this process is pytest's
    return install


Install = Callable[[Callable[[Way, int], int | str]], Forks]


def forecast(folder: Path, cli: Cli) -> Mapping[str, Any]:
    steps = cli("plan", folder / "m.yaml", "--format", "json").json["steps"]
    (found,) = (step["limits"]["forecast"] for step in steps if "limits" in step)
    return dict(found)


def test_a_job_is_measured_once_before_it_runs(folder: Path, cli: Cli, measured: Install) -> None:
    forks = measured(lambda _way, _batch: 300 * MIB)
    done = cli("apply", folder / "m.yaml")
    assert done.code == 0, done.out + done.err
    assert [way.arena for way, _ in forks.asked] == [True]
    report = json.loads((folder / "out/_run.json").read_text())
    assert report["memory"]["predicted_bytes"] >= 300 * MIB
    (folder / "m.yaml").write_text(MANIFEST.replace("path: out", "path: other"))
    assert "300 MiB of 1,000 MiB, as measured" in cli("plan", folder / "m.yaml").out
    assert cli("apply", folder / "m.yaml").code == 0
    assert len(forks.asked) == 1
    (folder / "m.yaml").write_text(MANIFEST.replace("path: out", "path: third").replace("size: 64", "size: 32"))
    assert cli("apply", folder / "m.yaml").code == 0
    assert [batch for _, batch in forks.asked] == [64, 32], "what another batch takes is not known"


@pytest.mark.parametrize("rows", [3, 2000])
def test_a_table_whose_rows_nobody_has_counted_is_measured(folder: Path, rows: int) -> None:
    """It may have fewer rows than are to be measured."""
    (folder / "data.jsonl").write_text('{"x": [1, 2, 3, 4]}\n' * rows)
    (folder / "m.yaml").write_text(MANIFEST.replace("data.npy", "data.jsonl"))
    done = run_process(["apply", "m.yaml"], cwd=folder)
    assert done.code == 0, done.err
    events = [json.loads(line)["event"] for line in done.err.splitlines()]
    assert events.count("job.measured") == 1
    assert "job.not_measured" not in events


@pytest.mark.parametrize("memory", ["", ", memory: {shrink_after_run: true}"])
def test_an_abort_under_the_limit_means_without_the_arena(
    folder: Path, cli: Cli, measured: Install, memory: str
) -> None:
    """Then there is no arena that could shrink, and ONNX Runtime would refuse each run that asks for it."""
    text = MANIFEST.replace("path: m.onnx", f"path: m.onnx{memory}")
    assert (text == MANIFEST) == (not memory)
    (folder / "m.yaml").write_text(text)
    forks = measured(lambda way, _batch: -6 if way.arena else 900 * MIB)
    done = cli("apply", folder / "m.yaml")
    assert done.code == 0, done.out + done.err
    assert [way.arena for way, _ in forks.asked] == [True, False]
    assert '"session.without_arena"' in done.err


def test_a_batch_much_smaller_than_the_jobs_is_found(folder: Path, cli: Cli, measured: Install) -> None:
    measured(lambda _way, batch: (200 + 200 * batch) * MIB)
    assert "batch: {size: 2} fits" in cli("apply", folder / "m.yaml").out


def test_a_job_that_fits_in_no_way_is_refused_with_a_batch_that_does(folder: Path, cli: Cli, measured: Install) -> None:
    forks = measured(lambda _way, batch: (200 + 20 * batch) * MIB)
    refused = cli("apply", folder / "m.yaml")
    assert refused.code == 1
    assert "over-memory-limit: it takes more than 1,000 MiB as measured" in refused.out
    assert "batch: {size: 32} fits" in refused.out
    assert [batch for _, batch in forks.asked][-2:] == [8, 32], "the largest is found by bisection"
    assert not (folder / "out").exists()
    planned = cli("plan", folder / "m.yaml")
    assert planned.code == 1
    assert "error[over-memory-limit]" in planned.out + planned.err
    assert "batch: {size: 32} fits." in " ".join((planned.out + planned.err).split())
    (folder / "m.yaml").write_text(MANIFEST.replace("1000MiB", "4000MiB"))
    assert cli("apply", folder / "m.yaml").code == 0, "a higher limit is measured anew"


def test_where_nothing_fits_no_batch_is_named(folder: Path, cli: Cli, measured: Install) -> None:
    measured(lambda _way, batch: (2000 + batch) * MIB)
    refused = cli("apply", folder / "m.yaml")
    assert refused.code == 1
    assert "no smaller batch is known to fit" in refused.out


@pytest.mark.parametrize("trouble", ["the model said no", -11])
def test_a_job_that_cannot_be_measured_runs_with_a_word(
    folder: Path, cli: Cli, measured: Install, trouble: int | str
) -> None:
    measured(lambda way, _batch: trouble if isinstance(trouble, str) or not way.arena else -6)
    done = cli("apply", folder / "m.yaml")
    assert done.code == 0, done.out + done.err
    assert '"job.not_measured"' in done.err
    assert ("the model said no" if isinstance(trouble, str) else "was ended by SIGSEGV") in done.err
    assert not memo_files(folder / ".ortdeploy", "memory")


def test_a_killed_measurement_refuses_the_job_once(folder: Path, cli: Cli, measured: Install) -> None:
    measured(lambda _way, _batch: -9)
    assert cli("apply", folder / "m.yaml").code == 1, "the kernel may have ended it, for want of memory"
    assert not memo_files(folder / ".ortdeploy", "memory")
    measured(lambda _way, _batch: 300 * MIB)
    done = cli("apply", folder / "m.yaml")
    assert done.code == 0, done.out + done.err


def test_first_rows_that_are_measured_or_tried_are_not_compared_with_what_is_expected(folder: Path) -> None:
    np.save(
        folder / "data.npy", np.repeat(np.array([0, 100], np.float32), [64, 6400])[:, None] * np.ones(4, np.float32)
    )
    (folder / "m.yaml").write_text(MANIFEST + "    expect: {y: {mean: [100, 1000]}}\n")
    done = run_process(["apply", "m.yaml"], cwd=folder)
    assert done.code == 0, done.out + done.err
    assert '"job.measured"' in done.err
    assert "not_measured" not in done.err
    tried = run_process(["try", "m.yaml"], cwd=folder)
    assert tried.code == 0, tried.out + tried.err


class Free(Struct):
    """A machine with so much memory free."""

    mebibytes: int

    def __call__(self) -> int:
        return self.mebibytes * MIB


@pytest.mark.parametrize(("free", "forks_asked"), [(100_000, 0), (150, 1)])
def test_without_a_limit_a_job_is_measured_where_little_is_free(
    folder: Path, cli: Cli, measured: Install, monkeypatch: pytest.MonkeyPatch, free: int, forks_asked: int
) -> None:
    monkeypatch.setattr(memory_notes, "available_memory", Free(free))
    monkeypatch.setattr(memory_notes, "memory_of_the_group", lambda: None)
    (folder / "m.yaml").write_text(MANIFEST.partition("    limits")[0])
    forks = measured(lambda _way, _batch: 90 * MIB)
    assert cli("apply", folder / "m.yaml").code == 0
    assert len(forks.asked) == forks_asked


def test_plan_measures_if_asked_and_changes_nothing(folder: Path, cli: Cli, measured: Install) -> None:
    forks = measured(lambda _way, _batch: 300 * MIB)
    before = sorted(folder.iterdir())
    planned = cli("plan", "--measure", folder / "m.yaml")
    assert planned.code == 0
    assert "300 MiB of 1,000 MiB, as measured" in planned.out
    assert len(forks.asked) == 1
    assert sorted(folder.iterdir()) == before
    assert cli("plan", "--measure", folder / "m.yaml", "--device", folder / "m.yaml").code == 64


def test_plan_that_measures_refuses_what_is_too_much(folder: Path, cli: Cli, measured: Install) -> None:
    measured(lambda _way, _batch: 3000 * MIB)
    planned = cli("plan", "--measure", folder / "m.yaml")
    assert planned.code == 1
    assert "error[over-memory-limit]" in planned.out + planned.err


def test_the_jobs_own_peak_counts_from_then_on(
    folder: Path, cli: Cli, measured: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(lambda _way, _batch: 300 * MIB)
    monkeypatch.setattr(memory_notes, "peak_memory", lambda: 500 * MIB)
    assert cli("apply", folder / "m.yaml").code == 0
    (kept,) = memo_values(folder / ".ortdeploy", "memory")
    assert [one["size"] for one in kept["measured"]] == [500 * MIB]
    assert [one["rows"] for one in kept["measured"]] == [256]


def test_measuring_changes_neither_the_plan_nor_what_is_written(folder: Path, cli: Cli, measured: Install) -> None:
    written = []
    for name, limit in (("free", ""), ("held", "    limits: {memory: 1000MiB}\n")):
        measured(lambda _way, _batch: 300 * MIB)
        (folder / "m.yaml").write_text(
            MANIFEST.partition("    limits")[0].replace("path: out", f"path: {name}") + limit
        )
        assert cli("apply", folder / "m.yaml").code == 0
        report = json.loads((folder / name / "_run.json").read_text())
        written.append([part["sha256"] for part in report["parts"]])
    assert written[0] == written[1]


def test_real_first_rows_are_measured_and_the_limit_is_kept(tmp_path: Path) -> None:
    """64 MiB of values for 256 rows, of a model whose table of 128 MiB lies in another file and is mapped."""
    nodes = [
        helper.make_node("Tile", ["x", "times"], ["a"]),
        helper.make_node("Sin", ["a"], ["b"]),
        helper.make_node("Cos", ["b"], ["c"]),
        helper.make_node("ReduceSum", ["c"], ["d"], axes=[1], keepdims=1),
        helper.make_node("ArgMax", ["x"], ["place"], axis=1, keepdims=0),
        helper.make_node("Gather", ["table", "place"], ["e"]),
        helper.make_node("Add", ["d", "e"], ["y"]),
    ]
    weights = {"times": np.array([1, 64], dtype=np.int64)}
    takes, gives = {"x": (int(TensorProto.FLOAT), ["n", 512])}, {"y": (int(TensorProto.FLOAT), ["n", 1])}
    save_model(tmp_path / "plain.onnx", nodes, takes, gives, weights, opset=12)  # type: ignore[arg-type]  # names and sizes
    _with_table(tmp_path / "plain.onnx", tmp_path / "m.onnx", 32 * MIB)
    np.save(tmp_path / "data.npy", np.ones((1024, 512), np.float32))
    limit = 200 * MIB
    (tmp_path / "m.yaml").write_text(MANIFEST.replace("1000MiB", "200MiB").replace("size: 64", "size: 256"))
    done = run_process(["apply", "m.yaml"], cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    assert '"job.measured"' in done.err
    report = json.loads((tmp_path / "out/_run.json").read_text())
    assert report["peak_memory_bytes"] < limit
    assert report["memory"]["predicted_bytes"] == pytest.approx(report["peak_memory_bytes"], rel=0.15)


def _with_table(path: Path, target: Path, numbers: int) -> None:
    """Save a model with a table of zeros in another file, which is all hole."""
    import onnx  # noqa: PLC0415  only here

    model = onnx.load(str(path))
    table = TensorProto(name="table", data_type=TensorProto.FLOAT, dims=[numbers, 1])
    table.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "table.data"), ("offset", "0"), ("length", str(4 * numbers))):
        table.external_data.add(key=key, value=value)
    with (target.parent / "table.data").open("wb") as file:
        file.truncate(4 * numbers)
    model.graph.initializer.append(table)
    target.write_bytes(model.SerializeToString())
