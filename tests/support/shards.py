"""The small language in which tests of shards speak: run one, finish, and what is there then."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from ortdeploy.application.finish import Finish
from ortdeploy.files.shared_store import SharedStore
from ortdeploy.jobs.executor import Execution
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.opening import copy_of_ledger, open_ledger
from ortdeploy.ledger.records import Part
from ortdeploy.parts.commit_log import CommitLog
from ortdeploy.plan.part_table import Shard
from ortdeploy.plan.selection import run_jobs
from ortdeploy.plan.steps import Plan, RunJob
from ortdeploy.results.results import JobResult
from support.fakes import Counter, FakeRuntime, double
from support.models import gather_model, lora_model, make_adapter

LOOKED_UP = """\
version: 1
models: {table: {path: m.onnx}}
jobs:
  run:
    model: table
    input: {path: rows.jsonl, key: [row]}
    batch: {size: 4, last: pad}
    output: {path: outbox/run, format: FORMAT, rows_per_part: 8}
    errors: {max_failed: 2}
"""

BY_ROW = """\
version: 1
models: {m: {path: m.onnx}}
adapters: {french: {path: fr.onnx_adapter, model: m}}
jobs:
  run:
    model: m
    adapter: {column: language, map: {fr: french}, otherwise: none}
    input: {path: rows.jsonl, key: [row, language]}
    batch: {size: 4, last: pad}
    output: {path: outbox/run, format: FORMAT, rows_per_part: 8}
    errors: {max_failed: 2}
"""


def write_rows(folder: Path, *, by_row: bool) -> None:
    """27 rows, the last batch of which is short: an index of the table, or four numbers with a language. Two rows fail."""
    if by_row:
        lora_model(folder / "m.onnx")
        make_adapter(folder / "fr.onnx_adapter", lora_A=np.ones((4, 2), np.float32), lora_B=np.ones((2, 4), np.float32))
        rows: list[dict[str, Any]] = [{"x": [row] * 4, "language": "fr" if row % 3 else "en"} for row in range(27)]
        rows[9]["x"] = rows[26]["x"] = [1, 2, 3]
    else:
        gather_model(folder / "m.onnx")
        rows = [{"index": 77 if row in {9, 26} else row % 10} for row in range(27)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


class Killed(BaseException):
    """Stands for a kill."""


def run_shard(
    folder: Path, plan: Plan, index: int, count: int, model: Any = double, observer: Counter | None = None
) -> JobResult:
    (result,) = run_shards(folder, plan, index, count, model, observer)
    return result


def run_shards(
    folder: Path, plan: Plan, index: int, count: int, model: Any = double, observer: Counter | None = None
) -> tuple[JobResult, ...]:
    """Run one shard of each job."""
    with copy_of_ledger(folder / ".ortdeploy") as ledger:
        execution = Execution(
            plan=plan,
            run_id="s1",
            runtime=FakeRuntime(model),
            ledger=ledger,
            observer=observer or Counter(),
            stop=lambda: False,
            shard=Shard(index=index, count=count),
        )
        return execution.run()


def finish(folder: Path, plan: Plan) -> JobResult:
    (step,) = run_jobs(plan)
    with open_ledger(folder / ".ortdeploy") as ledger:
        return Finish(plan=plan, step=step, ledger=ledger, run_id="f1").run()


def on_store(plan: Plan, url: str) -> Plan:
    """The plan of a job whose output is on a store."""
    steps = tuple(
        replace(one, output=replace(one.output, upload=url)) if isinstance(one, RunJob) else one for one in plan.steps
    )
    return replace(plan, steps=steps)


@contextmanager
def instead(patch: pytest.MonkeyPatch, name: str, do: Callable[..., Any]) -> Iterator[None]:
    """Let the first call of a method of the commit log be something else."""
    original, calls = getattr(CommitLog, name), []

    def first_only(log: CommitLog, *arguments: Any, **named: Any) -> Any:
        calls.append(name)
        as_called = partial(original, **named)
        return do(as_called, log, *arguments) if len(calls) == 1 else as_called(log, *arguments)

    with patch.context() as patched:
        patched.setattr(CommitLog, name, first_only)
        yield


@contextmanager
def killed_at_part(number: int) -> Iterator[None]:
    """Kill the run of one machine in the block before it commits the part of a number."""
    commit = Ledger.commit_part

    def die(ledger: Ledger, output: str, part: Part, *rest: Any, **others: Any) -> None:
        if part.number == number:
            raise Killed
        commit(ledger, output, part, *rest, **others)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Ledger, "commit_part", die)
        with pytest.raises(Killed):
            yield


def die_before(_original: Any, *_: Any) -> None:
    raise Killed


def die_after(original: Any, *arguments: Any) -> None:
    original(*arguments)
    raise Killed


OUT = "memory://bucket/out"
"""An output on the store in memory."""


def litter_of(found: list[str]) -> list[str]:
    """What nobody needs on a store once a plan is closed, of the names that were found."""
    kept = {"bound.json", "closed.json", "from-0.json"}
    return [one for one in found if one.startswith("_parts/") and one.split("/")[-1] not in kept]


_ASKED = ("pipe_file", "cat_file", "put_file", "cp_file", "rm_file", "info", "ls", "find")


@contextmanager
def failing(store: Any, at: dict[int, bool]) -> Iterator[None]:
    """Let requests to a store in memory by their number fail: True after they were carried out, False before."""
    calls = count()

    def failing_at(method: Any) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            number = next(calls)
            if at.get(number) is False:
                raise ConnectionError("away")
            result = method(*arguments, **more)
            if at.get(number):
                raise ConnectionError("the answer was lost")
            return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in _ASKED:
            patch.setattr(type(store), name, failing_at(getattr(type(store), name)))
        patch.setattr(SharedStore, "at_once", 1)  # so that a schedule is the same each time
        patch.setattr("ortdeploy.retries.FIRST_WAIT", 0.0)
        yield
