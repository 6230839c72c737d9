"""The small language in which tests of shards speak: run one, finish, and what is there then."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.opening import copy_of_ledger, open_ledger
from ortdeploy.ledger.records import Part
from ortdeploy.plan.part_table import Shard
from ortdeploy.plan.selection import run_jobs
from ortdeploy.plan.steps import Plan, RunJob
from ortdeploy.results.results import JobResult
from ortdeploy.running.executor import Execution
from ortdeploy.running.shards.commit_log import CommitLog
from ortdeploy.running.shards.finish import Finish
from support.fakes import Counter, FakeRuntime, double


class Killed(BaseException):
    """Stands for a kill."""


def run_shard(folder: Path, plan: Plan, index: int, count: int, model: Any = double) -> JobResult:
    (result,) = run_shards(folder, plan, index, count, model)
    return result


def run_shards(folder: Path, plan: Plan, index: int, count: int, model: Any = double) -> tuple[JobResult, ...]:
    """Run one shard of each job."""
    with copy_of_ledger(folder / ".ortdeploy") as ledger:
        execution = Execution(
            plan=plan,
            run_id="s1",
            runtime=FakeRuntime(model),
            ledger=ledger,
            observer=Counter(),
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
