"""Runs the first rows of manifests in a scratch folder, for `ortdeploy try` and `ortdeploy init`."""

import argparse
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ortdeploy.cli.children.apply import run_plan
from ortdeploy.cli.commands.shared import load_options
from ortdeploy.cli.signals import StopFlag
from ortdeploy.files.opening import open_text
from ortdeploy.plan.selection import run_jobs
from ortdeploy.plan.steps import RunJob
from ortdeploy.planning.planned import Planned
from ortdeploy.planning.tryout import Tryout
from ortdeploy.planning.workflow import plan_manifests
from ortdeploy.results.results import JobResult, Status
from ortdeploy.running.report import FAILED

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
    stopped = StopFlag()
    with stopped.installed():
        for plan in planned.plans:
            if stopped():
                raise KeyboardInterrupt
            run_id = uuid.uuid4().hex[:12]
            results += run_plan(plan, tryout.folder / STATE, run_id, arguments, stopped, most_rows=tryout.rows)
    if any(one.status is Status.INTERRUPTED for one in results):
        raise KeyboardInterrupt
    return results


def failed_rows(planned: Planned) -> Iterator[dict[str, Any]]:
    """Yield what a tryout's jobs have noted of failed rows."""
    for plan in planned.plans:
        for step in run_jobs(plan):
            yield from json_lines(Path(step.output.path) / FAILED)


def tried_rows(planned: Planned) -> Iterator[tuple[RunJob, list[dict[str, Any]]]]:
    """Yield a tryout's jobs with the rows that they have written."""
    for plan in planned.plans:
        for step in run_jobs(plan):
            output = Path(step.output.path)
            yield step, [row for part in sorted(output.glob("part-*.jsonl")) for row in json_lines(part)]


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of JSON lines, which may not be there."""
    if path.is_file():
        with open_text(path) as file:
            yield from map(json.loads, file)
