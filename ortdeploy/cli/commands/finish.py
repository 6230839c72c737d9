"""`ortdeploy finish`: put the parts that the shards of a saved plan decided into the ledger and the report."""

import argparse
import sys
import uuid
from contextlib import ExitStack
from pathlib import Path

from msgspec.structs import replace

from ortdeploy.application.finish import Finish
from ortdeploy.cli.applying.runner import keep_manifest
from ortdeploy.cli.commands.shared import result_from_here, start_logging, use_color, write_diagnostics
from ortdeploy.cli.exit_codes import EXIT_OK, EXIT_REJECTED
from ortdeploy.cli.plans import load_plan_file
from ortdeploy.diagnostics import UsageError, has_errors
from ortdeploy.events import bound
from ortdeploy.jobs.finished_jobs import completed, nothing_to_do
from ortdeploy.ledger.opening import open_ledger
from ortdeploy.ledger.output_lock import hold_outputs
from ortdeploy.ledger.records import output_key
from ortdeploy.plan.selection import run_jobs, written_paths
from ortdeploy.plan.steps import Plan
from ortdeploy.planning.planned import Planned
from ortdeploy.planning.state_folder import state_folder
from ortdeploy.redaction import shown_arguments
from ortdeploy.results.results import JobResult, Status
from ortdeploy.views import json, text


def run(arguments: argparse.Namespace) -> int:
    """Finish every job of the plan; return 0 if all are complete, or 1 and print what is missing."""
    with ExitStack() as stack:
        start_logging(arguments, stack)
        planned = load_plan_file(arguments, in_shards=True, computes=False, folds=True)
        if planned is None:
            raise UsageError("finish takes one plan file, as ortdeploy plan --out saves it")
        if arguments.format != "json":
            write_diagnostics(planned.diagnostics, arguments)
        words = shown_arguments(arguments.words)
        plans = [replace(plan, arguments=words) for plan in planned.plans]
        ended = [(plan, result) for plan in plans for result in _finish(planned, plan, arguments.state_dir)]
    results = [result for _, result in ended]
    if arguments.format == "json":
        sys.stdout.write(json.render_apply(planned.diagnostics, planned.plans, results))
    elif arguments.format != "sarif":
        here = [result_from_here(plan, result) for plan, result in ended]
        told = [one for one in here if not arguments.quiet or one.status is Status.FAILED]
        sys.stdout.write(text.render_results(told, color=use_color(arguments)))
    failed = any(result.status is Status.FAILED for result in results)
    return EXIT_REJECTED if failed or has_errors(planned.diagnostics) else EXIT_OK


def _finish(planned: Planned, plan: Plan, state_dir: str | None) -> tuple[JobResult, ...]:
    state, run_id = state_folder(plan.folder, state_dir, plan.roots), uuid.uuid4().hex[:12]
    paths = written_paths(plan)
    if not paths:
        return tuple(map(nothing_to_do, plan.finished))
    outputs = [output_key(Path(plan.folder) / path, state) for path in paths]
    with (
        bound(run=run_id, deployment=plan.deployment),
        hold_outputs(state, outputs),
        open_ledger(state) as ledger,
    ):
        keep_manifest(planned, plan, state, run_id)
        finished = [completed(plan, job, ledger) for job in plan.finished]
        done = [Finish(plan=plan, step=step, ledger=ledger, run_id=run_id).run() for step in run_jobs(plan)]
    return (*finished, *done)
