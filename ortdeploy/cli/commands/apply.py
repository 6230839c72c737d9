"""`ortdeploy apply`: plan a manifest and run the plan; a saved plan is planned again and must be the same."""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ortdeploy.cli.children.apply import run_plan
from ortdeploy.cli.commands.shared import (
    load_options,
    start_logging,
    terminal_width,
    use_color,
    write_diagnostics,
    write_plan,
)
from ortdeploy.cli.exit_codes import EXIT_OK, EXIT_PAUSED, EXIT_REJECTED, EXIT_USAGE
from ortdeploy.cli.signals import StopFlag
from ortdeploy.cli.streams import overheard
from ortdeploy.diagnostics import OrtdeployError, Severity, has_errors
from ortdeploy.events import log
from ortdeploy.ledger.ledger import now
from ortdeploy.plan.part_table import Shard
from ortdeploy.plan.steps import Plan, RunJob
from ortdeploy.planning.checked_plan import recall_plan
from ortdeploy.planning.nothing_to_do import Recollection
from ortdeploy.planning.planned import Planned
from ortdeploy.planning.run_text import keep_text
from ortdeploy.planning.state_folder import state_folder
from ortdeploy.redaction import shown_arguments
from ortdeploy.results.results import JobResult, Status
from ortdeploy.running.executor import Execution
from ortdeploy.running.gone_files import note_gone_files
from ortdeploy.views import text

if TYPE_CHECKING:
    from ortdeploy.planning.keep_checked import ToKeep

if TYPE_CHECKING:
    from ortdeploy.cli.engines import Engine

_BAD = (Status.FAILED, Status.INTERRUPTED)


def run(arguments: argparse.Namespace) -> int:
    """Plan, show the plan, run it, and show how each job ended; if there was nothing to do, remember that.

    A manifest that is refused does not stop the others.
    """
    recollection = Recollection(arguments)
    with overheard() as said:
        planned, code, to_keep = _run(arguments, recollection)
    if code == EXIT_OK and planned.deployments:
        from ortdeploy.planning.known_graphs import keep_waiting  # noqa: PLC0415  loaded already, to plan
        from ortdeploy.planning.rests_on import rests_on  # noqa: PLC0415

        with suppress(OrtdeployError):  # a state folder that has come to lead elsewhere keeps nothing
            state_dir = state_folder(planned.plans[0].folder, arguments.state_dir, planned.plans[0].roots)
            keep_waiting(state_dir)
            if to_keep is not None:
                to_keep.keep()
            if not any(plan.steps for plan in planned.plans):
                rested_on = rests_on(planned.deployments, arguments.paths, state_dir)
                recollection.keep(rested_on, str(state_dir), said.text())
    return code


def _run(arguments: argparse.Namespace, recollection: Recollection) -> "tuple[Planned, int, ToKeep | None]":
    with ExitStack() as stack:
        kept = start_logging(arguments, stack)
        engine = _engine_of(arguments)
        shard = _shard_of(arguments)
        in_shards = shard is not None or engine is not None
        planned, to_keep = _recall_or_plan(arguments, recollection, in_shards=in_shards)
        rejected = has_errors(planned.diagnostics)
        if arguments.format != "json":
            write_diagnostics(planned.diagnostics, arguments)
        if arguments.format == "text" and (planned.plans or not rejected) and not arguments.quiet:
            write_plan(planned.plans, arguments)
            sys.stdout.flush()
        ended: list[_Ended] = []
        stopped = StopFlag()
        if kept is not None and any(plan.steps for plan in planned.plans):
            kept.keep_in(state_folder(planned.plans[0].folder, arguments.state_dir, planned.plans[0].roots))
        if planned.plans or planned.stand_ins:
            with stopped.installed():
                ended = _execute(planned, arguments, stopped, shard, engine)
        results = tuple(result for _, of_plan in ended for result in of_plan)
        if arguments.command == "apply":
            _tell_others(planned, ended, arguments)
    _tell(planned, results, arguments)
    if any(result.status is Status.INTERRUPTED for result in results):
        return planned, stopped.exit_code, None
    failed = [result for result in results if result.status is Status.FAILED]
    if shard is not None and (rejected or failed) and all(result.refused for result in failed):
        return planned, EXIT_USAGE, None  # a scheduler that runs shards again need not run this one
    if rejected or failed:
        return planned, EXIT_REJECTED, None
    is_paused = any(result.status is Status.PAUSED for result in results)
    return planned, EXIT_PAUSED if is_paused else EXIT_OK, to_keep


def _tell(planned: Planned, results: Sequence[JobResult], arguments: argparse.Namespace) -> None:
    """Print how the jobs ended: a table on a terminal, else a line for each job; with -q, only what went wrong."""
    if arguments.format == "json":
        from ortdeploy.views import json  # noqa: PLC0415  only if asked for

        sys.stdout.write(json.render_apply(planned.diagnostics, planned.plans, results))
        return
    if arguments.format == "sarif":
        return
    told = [one for one in results if not arguments.quiet or one.status in _BAD]
    width = terminal_width(sys.stdout)
    if width is not None:
        from ortdeploy.views.closing_table import render_table  # noqa: PLC0415  only on a terminal

        sys.stdout.write(render_table(told, color=use_color(arguments), width=width))
    else:
        sys.stdout.write(text.render_results(told, color=use_color(arguments)))


def _shard_of(arguments: argparse.Namespace) -> Shard | None:
    said = getattr(arguments, "shard", None)
    if said is None:
        return None
    from ortdeploy.cli.shards import parse_shard  # noqa: PLC0415  only if asked for

    return parse_shard(said, os.environ)


def _engine_of(arguments: argparse.Namespace) -> "Engine | None":
    if getattr(arguments, "engine", None) is None and getattr(arguments, "workers", None) is None:
        return None
    from ortdeploy.cli.engines import engine_of  # noqa: PLC0415  only for a cluster

    return engine_of(arguments)


def _recall_or_plan(
    arguments: argparse.Namespace, recollection: Recollection, *, in_shards: bool
) -> "tuple[Planned, ToKeep | None]":
    """Return the plan, and what is to be remembered of it. If it is remembered already, look at the data alone."""
    if arguments.command != "apply" or in_shards or arguments.last_good or arguments.root is not None:
        return _plan(arguments, in_shards=in_shards), None
    recalled = recall_plan(recollection, arguments.paths, arguments.roots, arguments.state_dir)
    if recalled is not None:
        return recalled, None
    planned = _plan(arguments, in_shards=False)
    if not planned.deployments or not any(plan.steps for plan in planned.plans):
        return planned, None
    from ortdeploy.planning.keep_checked import ToKeep  # noqa: PLC0415  only if it was planned

    with suppress(OrtdeployError):
        state_dir = state_folder(planned.plans[0].folder, arguments.state_dir, planned.plans[0].roots)
        return planned, ToKeep(recollection, planned, arguments.paths, state_dir)
    return planned, None


def _plan(arguments: argparse.Namespace, *, in_shards: bool) -> Planned:
    from ortdeploy.cli.plans import load_or_plan  # noqa: PLC0415  not where the plan is remembered

    return load_or_plan(arguments, in_shards=in_shards)


_Ended = tuple[Plan, tuple[JobResult, ...]]
"""A plan, and how its jobs ended."""


def _execute(
    planned: Planned,
    arguments: argparse.Namespace,
    stopped: StopFlag,
    shard: Shard | None,
    engine: "Engine | None" = None,
) -> list[_Ended]:
    """Run the plans one after the other; with --last-good, run the last good version of refused manifests."""
    run_id = os.urandom(6).hex()
    ended: list[_Ended] = []
    deployments = [*planned.deployments, *[None] * (len(planned.plans) - len(planned.deployments))]
    for plan, deployment in zip(planned.plans, deployments, strict=True):
        if stopped():
            return ended
        state_dir = state_folder(plan.folder, arguments.state_dir, plan.roots)
        refused = refused_by_gates(plan, arguments.state_dir) if plan.steps else None
        if refused is not None:
            if shard is None:
                note_gone_files(plan, state_dir)
            ended.append((plan, refused))
            for one in _last_good(plan, refused[0].reason or "", arguments) if arguments.last_good else ():
                ended.append((one, _run_one(one, state_dir, run_id, arguments, stopped)))  # noqa: PERF401
            continue
        if plan.steps and shard is None and engine is None:
            _keep_text(planned, plan, state_dir, run_id)
        ended.append((plan, _run_one(plan, state_dir, run_id, arguments, stopped, shard=shard, engine=engine)))
        well = all(one.status is not Status.FAILED for one in ended[-1][1])
        if arguments.last_good and deployment is not None and well:
            from ortdeploy.planning.last_good import keep_good  # noqa: PLC0415  only if asked for

            keep_good(deployment, state_dir, now())
    for plan in planned.stand_ins:
        if not stopped():
            state_dir = state_folder(plan.folder, arguments.state_dir, plan.roots)
            ended.append((plan, _run_one(plan, state_dir, run_id, arguments, stopped)))
    return ended


def _keep_text(planned: Planned, plan: Plan, state_dir: Path, run_id: str) -> None:
    """Keep the manifest's text, if the plan was made from one."""
    document = planned.documents.get(plan.manifest)
    spec = next((one for one in planned.specs if os.path.abspath(one.path) == _manifest_of(plan)), None)  # noqa: PTH100
    if spec is not None:
        from ortdeploy.providers.secrets import masked_document  # noqa: PLC0415  loaded already, to plan

        document = masked_document(spec.document.data)
    if document is not None:
        keep_text(document, plan, state_dir, run_id)


def _tell_others(planned: Planned, ended: Sequence[_Ended], arguments: argparse.Namespace) -> None:
    """Call what `on_end:` of each manifest names, unless its apply went well or was interrupted."""
    for spec in planned.specs:
        if spec.on_end is None:
            continue
        from ortdeploy.cli import on_end  # noqa: PLC0415  only where somebody is told

        own = [one for one in ended if _manifest_of(one[0]) == os.path.abspath(spec.path)]  # noqa: PTH100  keeps links
        statuses = {result.status for _, results in own for result in results}
        errors = [one for one in planned.diagnostics if one.severity is Severity.ERROR and one.span.path == spec.path]
        refusals = [f"{one.rule}: {one.summary}. {one.detail}" for one in errors]
        if Status.INTERRUPTED in statuses:
            continue
        try:
            state_dir = state_folder(spec.folder, arguments.state_dir, spec.roots)
        except OrtdeployError:  # it is among what the manifest is refused for
            continue
        if refusals or statuses & {Status.FAILED, Status.PAUSED}:
            code = EXIT_REJECTED if refusals or Status.FAILED in statuses else EXIT_PAUSED
            on_end.tell_news(spec, on_end.message(spec, code, refusals, own), state_dir)
        else:
            on_end.forget(spec, state_dir)


def _manifest_of(plan: Plan) -> str:
    return str(Path(plan.folder) / Path(plan.manifest).name)


def _run_one(
    plan: Plan,
    state_dir: Path,
    run_id: str,
    arguments: argparse.Namespace,
    stopped: StopFlag,
    *,
    shard: Shard | None = None,
    engine: "Engine | None" = None,
) -> tuple[JobResult, ...]:
    plan = replace(plan, arguments=shown_arguments(arguments.words))
    if shard is None:
        note_gone_files(plan, state_dir)
    if engine is not None and plan.steps:
        from ortdeploy.cli.engines import run_on_engine  # noqa: PLC0415  only for a cluster

        return run_on_engine(plan, state_dir, run_id, arguments, stopped, engine)
    if plan.steps or any(job.left_over is not None for job in plan.finished):
        return run_plan(plan, state_dir, run_id, arguments, stopped, shard=shard)
    return Execution.finished(plan)


def _last_good(plan: Plan, reason: str, arguments: argparse.Namespace) -> tuple[Plan, ...]:
    """Return the plan of a manifest's last good version; empty if none is kept."""
    from ortdeploy.planning.last_good import plan_last_good  # noqa: PLC0415  only where something is refused

    return plan_last_good(
        _manifest_of(plan),
        load_options(arguments),
        reason,
        state_dir=arguments.state_dir,
        now=now(),
        jobs=arguments.jobs,
        excluded=arguments.excluded,
    ).plans


def refused_by_gates(plan: Plan, state_dir: str | None) -> tuple[JobResult, ...] | None:
    """Run the golden checks that gate a plan; return its jobs as failed if one does not pass."""
    if not plan.gates:
        return None
    from ortdeploy.checks.run import PASSED  # noqa: PLC0415  only for gates
    from ortdeploy.cli.commands.check import run_checks  # noqa: PLC0415

    results = list(run_checks(plan.gates, state_dir, plan.roots))
    for result in results:
        log.info("check.finished", model=result.model, session=result.session, check=result.check, status=result.status)
    bad = next((result for result in results if result.status != PASSED), None)
    if bad is None:
        return None
    reason = f"golden check {bad.check} of model {bad.model} on session {bad.session} {bad.status}: {bad.message}"
    return tuple(
        JobResult(job=step.job, status=Status.FAILED, output=step.output.shown, reason=reason)
        for step in plan.steps
        if isinstance(step, RunJob)
    )
