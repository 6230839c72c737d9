"""Runs the first rows of manifests in a scratch folder, for `ortdeploy try` and `ortdeploy init`."""

import argparse
import json
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ortdeploy.application.supervisor import result_in, result_message
from ortdeploy.cli.children.apply import needs_supervision, run_plan
from ortdeploy.cli.children.endings import told_to_the_parent
from ortdeploy.cli.command_line.manifest_options import load_options
from ortdeploy.cli.signals import StopFlag
from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.opening import open_text
from ortdeploy.plan.steps import RunJob
from ortdeploy.planning.planned import Planned
from ortdeploy.planning.tryout import Tryout
from ortdeploy.planning.workflow import plan_manifests
from ortdeploy.process.child import CRASHES, how_it_ended
from ortdeploy.process.fork import ask_fork, can_fork
from ortdeploy.reports.report import FAILED
from ortdeploy.results.results import JobResult, Status

_A_DAY = 24 * 3600.0
STATE = ".state"
"""The state folder of a tryout, in its scratch folder."""


def plan_tryout(tryout: Tryout, arguments: argparse.Namespace) -> Planned:
    """Plan the first rows of the chosen jobs."""
    return plan_manifests(
        arguments.paths,
        load_options(arguments),
        state_dir=str(tryout.folder / STATE),
        jobs=arguments.jobs,
        excluded=arguments.excluded,
        tryout=tryout,
    )


def run_tryout(tryout: Tryout, planned: Planned, arguments: argparse.Namespace) -> tuple[JobResult, ...]:
    """Run a tryout's plans. Raises KeyboardInterrupt if a signal ends it, as a tryout cannot continue later."""
    results: tuple[JobResult, ...] = ()
    stopped = StopFlag(_interrupt)
    with stopped.installed():
        for plan in planned.plans:
            run_id = uuid.uuid4().hex[:12]
            run = partial(run_plan, plan, tryout.folder / STATE, run_id, arguments, row_limit=tryout.rows)
            is_apart = bool(plan.steps) and can_fork() and not needs_supervision(plan)
            results += _run_apart(run) if is_apart else run(stopped=stopped)
    if any(one.status is Status.INTERRUPTED for one in results):
        raise KeyboardInterrupt
    return results


def _interrupt(_number: int) -> None:
    raise KeyboardInterrupt


def _run_apart(run: Callable[..., tuple[JobResult, ...]]) -> tuple[JobResult, ...]:
    """Run a plan in a fork; if native code crashes there, run it once more, which looks for the rows that crash it.

    Raises OrtdeployError and ChildBugError as the fork did.
    """

    def messages() -> list[dict[str, Any]]:
        said: list[dict[str, Any]] = []

        def say(_blob: bytes | None = None, /, **message: Any) -> None:
            said.append(message)

        with told_to_the_parent(say, "error"):
            said += map(result_message, run(stopped=StopFlag()))
        return said

    answer = ask_fork(messages, seconds=_A_DAY)
    if answer.code in CRASHES:
        stopped = StopFlag()
        with stopped.installed():
            return run(stopped=stopped)
    if answer.code != 0:
        how = how_it_ended(answer.code)
        raise OrtdeployError(f"the process that ran the first rows {how}, as the system does if memory runs out")
    return tuple(map(result_in, answer.messages))


def failed_rows(step: RunJob) -> Iterator[dict[str, Any]]:
    """Yield what a tryout's job has noted of failed rows."""
    return _json_lines(Path(step.output.path) / FAILED)


def tried_rows(step: RunJob) -> list[dict[str, Any]]:
    """Return the rows that a tryout's job has written."""
    return [row for part in sorted(Path(step.output.path).glob("part-*.jsonl")) for row in _json_lines(part)]


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of JSON lines, which may not be there."""
    if path.is_file():
        with open_text(path) as file:
            yield from map(json.loads, file)
