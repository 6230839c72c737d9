"""The small language in which tests of running speak: a plan, its data, a run, and what it left."""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from pyarrow import parquet

from ortdeploy.deployment.resolve import resolve
from ortdeploy.facts.facts import Facts
from ortdeploy.files.names import REPORT
from ortdeploy.jobs.executor import Execution
from ortdeploy.ledger.opening import open_ledger
from ortdeploy.plan.steps import OpenSession, Plan, RunJob
from ortdeploy.planning.make.plan import make_plan
from ortdeploy.reports.report import FAILED
from ortdeploy.results.results import JobResult
from ortdeploy.rules.catalogue import DEPLOYMENT_RULES, load_rules
from ortdeploy.rules.protocol import check_rules
from ortdeploy.sources.files import file_states
from ortdeploy.streaming.crashed_runs import CrashedRun
from support.facts import make_facts
from support.fakes import Counter, FakeRuntime, without_row_checks
from support.specs import make_spec

MANIFEST = """\
version: 1
models:
  m: {{path: m.onnx}}
jobs:
  run:
    model: m
    input: {{path: data.npy, key: [row]}}
    batch: {{size: {size}, last: {last}}}
    output: {{path: out, rows_per_part: {rows_per_part}}}
    errors: {{max_failed: {max_failed}, on_nan: {on_nan}}}
"""


def with_files(facts: Facts, folder: Path) -> Facts:
    """Let the job's input be the file that is there."""
    states = file_states([str(path) for path in [folder / "data.npy"] if path.exists()], str(folder))
    return replace(facts, inputs={"run": replace(facts.inputs["run"], states=states)})


def plan_for(folder: Path, rows: int, **settings_: Any) -> Plan:
    chosen = {"size": 4, "last": "short", "rows_per_part": 8, "max_failed": 0, "on_nan": "keep"} | settings_
    spec = make_spec(MANIFEST.format(**chosen), folder=str(folder))
    facts = make_facts(
        spec,
        {
            "models": {"m": {"inputs": {"x": "float32[batch,2]"}, "outputs": {"y": "float32[batch,2]"}}},
            "inputs": {"run": {"columns": {"array": "float32[rows,2]"}, "rows": rows}},
        },
    )
    deployment = resolve(spec, with_files(facts, folder))
    assert not check_rules(load_rules(DEPLOYMENT_RULES), deployment, spec)
    return without_row_checks(make_plan(deployment))


def save(folder: Path, values: "list[float] | range") -> None:
    np.save(folder / "data.npy", np.array([[value, value] for value in values], dtype=np.float32).reshape(-1, 2))


_RETRIES = count(1)


def run_id_of(plan: Plan) -> str:
    """The id of a run of a plan: each retry has its own, for it runs no row again that has failed in it."""
    retries = any(isinstance(step, RunJob) and step.retry for step in plan.steps)
    return f"retry{next(_RETRIES)}" if retries else "r1"


def execute(
    folder: Path,
    plan: Plan,
    runtime: FakeRuntime,
    *,
    observer: Counter | None = None,
    stop: Callable[[], bool] = lambda: False,
    stuck: Sequence[frozenset[int]] = (),
    run_id: str | None = None,
    on_run: Callable[[str, Sequence[int]], None] | None = None,
) -> JobResult:
    with open_ledger(folder / ".ortdeploy") as ledger:
        execution = Execution(
            plan=plan,
            run_id=run_id or run_id_of(plan),
            runtime=runtime,
            ledger=ledger,
            observer=observer or Counter(),
            stop=stop,
            fatal={"run": tuple(CrashedRun(rows=rows) for rows in stuck)},
            on_run=on_run,
        )
        (result,) = execution.run()
    return result


def rows(folder: Path) -> list[tuple[int, float]]:
    lines = [line for part in sorted((folder / "out").glob("part-*")) for line in part.read_text().splitlines()]
    return [(row["row"], row["y"][0]) for row in map(json.loads, lines)]


def failed(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "out" / FAILED).read_text().splitlines()]


def report(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "out" / REPORT).read_text())
    return loaded


SESSIONS = "{path: m.onnx, sessions: [{name: npu, providers: [CPU]}, {name: gpu, providers: [CPU]}, {name: cpu, providers: [CPU]}]}"


def plan_with_sessions(folder: Path, rows: int, rows_per_part: int = 8) -> Plan:
    spec = make_spec(
        MANIFEST.format(size=4, last="short", rows_per_part=rows_per_part, max_failed=0, on_nan="keep").replace(
            "{path: m.onnx}", SESSIONS
        ),
        folder=str(folder),
    )
    facts = make_facts(
        spec,
        {
            "models": {"m": {"inputs": {"x": "float32[batch,2]"}, "outputs": {"y": "float32[batch,2]"}}},
            "inputs": {"run": {"columns": {"array": "float32[rows,2]"}, "rows": rows}},
        },
    )
    return without_row_checks(make_plan(resolve(spec, with_files(facts, folder))))


def plan_with_all(folder: Path, rows: int, **changes: Any) -> Plan:
    plan = plan_with_sessions(folder, rows, rows_per_part=4)  # a block is one batch, so that all sessions get some
    opening, run = plan.steps
    assert isinstance(opening, OpenSession)
    return replace(plan, steps=(replace(opening, use="all", **changes), run))


GROUPS = ("input", "batching", "output", "errors", "limits")


def changed_job(step: RunJob, **changes: Any) -> RunJob:
    """Return a job with other settings; those of a group by their names there: `errors={"retries": 2}`."""
    groups = {name: replace(getattr(step, name), **changes[name]) for name in changes.keys() & {*GROUPS}}
    return replace(step, **{**changes, **groups})


def changed(plan: Plan, **changes: Any) -> Plan:
    """Return a plan whose jobs have other settings."""
    steps = tuple(changed_job(step, **changes) if isinstance(step, RunJob) else step for step in plan.steps)
    return replace(plan, steps=steps)


def retrying(plan: Plan, **changes: Any) -> Plan:
    return changed(plan, retry=True, **changes)


def written_as(plan: Plan, kind: str) -> Plan:
    return changed(plan, output={"format": kind})


READ: Mapping[str, Callable[[Path], list[Any]]] = {
    "arrow": lambda path: pa.ipc.open_file(path).read_all().column("row").to_pylist(),
    "csv": lambda path: [int(line.split(",")[0]) for line in path.read_text().splitlines()[1:]],
    "jsonl": lambda path: [json.loads(line)["row"] for line in path.read_text().splitlines()],
    "npz": lambda path: np.load(path)["row"].tolist(),
    "parquet": lambda path: parquet.read_table(path).column("row").to_pylist(),
}


class Killed(BaseException):
    """Stands for a kill: nothing after it is done."""
