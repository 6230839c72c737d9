"""`ortdeploy apply`: plan a manifest and run the plan; a saved plan is planned again and must be the same."""

import argparse
import os
import sys
import uuid
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ortdeploy.cli.children.apply import run_plan
from ortdeploy.cli.commands.shared import (
    load_options,
    plan_root,
    start_logging,
    use_color,
    write_diagnostics,
    write_plan,
)
from ortdeploy.cli.exit_codes import EXIT_OK, EXIT_PAUSED, EXIT_REJECTED, EXIT_USAGE
from ortdeploy.cli.shards import parse_shard
from ortdeploy.cli.signals import StopFlag
from ortdeploy.cli.streams import overheard
from ortdeploy.diagnostics import OrtdeployError, Severity, UsageError, has_errors
from ortdeploy.events import log
from ortdeploy.files.names import is_file
from ortdeploy.ledger.ledger import now
from ortdeploy.plan.part_table import Shard
from ortdeploy.plan.selection import job_names, keep_jobs, run_jobs, with_letters
from ortdeploy.plan.steps import DeadLetter, Plan, RunJob
from ortdeploy.planning.known_graphs import keep_waiting
from ortdeploy.planning.nothing_to_do import Recollection
from ortdeploy.planning.rests_on import rests_on
from ortdeploy.planning.saved_plan import MAX_BYTES, is_plan_file, load_plans
from ortdeploy.planning.workflow import Planned, plan_again, plan_manifests, select_jobs, state_folder
from ortdeploy.results.results import JobResult, Status
from ortdeploy.running.executor import Execution
from ortdeploy.running.gone_files import note_gone_files
from ortdeploy.views import json, text

if TYPE_CHECKING:
    from ortdeploy.cli.engines import Engine

_BAD = (Status.FAILED, Status.INTERRUPTED)
_OPTIONS_OF_PLANS = {
    "--new-run": "new_run",
    "--last-good": "last_good",
    "--profile": "profile",
    "--set": "sets",
    "--overlay": "overlays",
}


def run(arguments: argparse.Namespace) -> int:
    """Plan, show the plan, run it, and show how each job ended; if there was nothing to do, remember that.

    A manifest that is refused does not stop the others.
    """
    recollection = Recollection(arguments)
    with overheard() as said:
        planned, code = _run(arguments)
    if code == EXIT_OK and planned.deployments:
        with suppress(OrtdeployError):  # a state folder that has come to lead elsewhere keeps nothing
            state_dir = state_folder(planned.plans[0].folder, arguments.state_dir, planned.plans[0].roots)
            keep_waiting(state_dir)
            if not any(plan.steps for plan in planned.plans):
                rested_on = rests_on(planned.deployments, arguments.paths, state_dir)
                recollection.keep(rested_on, str(state_dir), said.text())
    return code


def _run(arguments: argparse.Namespace) -> tuple[Planned, int]:
    with ExitStack() as stack:
        kept = start_logging(arguments, stack)
        engine = _engine_of(arguments)
        shard = _shard_of(arguments)
        planned = _load_or_plan(arguments, in_shards=shard is not None or engine is not None)
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
        return planned, stopped.exit_code
    if rejected and shard is not None:
        return planned, EXIT_USAGE  # a scheduler that runs shards again need not run this one
    if rejected or any(result.status is Status.FAILED for result in results):
        return planned, EXIT_REJECTED
    return planned, EXIT_PAUSED if any(result.status is Status.PAUSED for result in results) else EXIT_OK


def _tell(planned: Planned, results: Sequence[JobResult], arguments: argparse.Namespace) -> None:
    """Print how the jobs ended: a table on a terminal, else a line for each job; with -q, only what went wrong."""
    if arguments.format == "json":
        sys.stdout.write(json.render_apply(planned.diagnostics, planned.plans, results))
        return
    if arguments.format == "sarif":
        return
    told = [one for one in results if not arguments.quiet or one.status in _BAD]
    if sys.stdout.isatty():
        from ortdeploy.views.closing_table import render_table  # noqa: PLC0415  brings rich

        sys.stdout.write(render_table(told, color=use_color(arguments)))
    else:
        sys.stdout.write(text.render_results(told, color=use_color(arguments)))


def _shard_of(arguments: argparse.Namespace) -> Shard | None:
    said = getattr(arguments, "shard", None)
    return None if said is None else parse_shard(said, os.environ)


def _engine_of(arguments: argparse.Namespace) -> "Engine | None":
    if getattr(arguments, "engine", None) is None and getattr(arguments, "workers", None) is None:
        return None
    from ortdeploy.cli.engines import engine_of  # noqa: PLC0415  only who has a cluster

    return engine_of(arguments)


def _load_or_plan(arguments: argparse.Namespace, *, in_shards: bool) -> Planned:
    """Plan from manifests, or from a plan file; a plan file's manifest is planned again and compared."""
    saved = load_plan_file(arguments, in_shards=in_shards) if arguments.command == "apply" else None
    if saved is not None:
        return saved
    if in_shards:
        flag = "--shard" if getattr(arguments, "engine", None) is None else "--engine"
        raise UsageError(f"{flag} is for a saved plan, whose parts are fixed: ortdeploy plan --out PLAN saves one")
    if getattr(arguments, "root", None) is not None:
        raise UsageError("--root says what the paths of a saved plan are relative to, and this is none")
    named = getattr(arguments, "letters", None)
    letters = None if named is None else _read_letters(named)
    planned = plan_manifests(
        arguments.paths,
        load_options(arguments),
        state_dir=arguments.state_dir,
        jobs=arguments.jobs,
        excluded=arguments.excluded,
        new_run=arguments.new_run,
        retry=arguments.command == "retry",
    )
    if letters is None:
        return _with_last_good(planned, arguments)
    jobs = [step.job for plan in planned.plans for step in run_jobs(plan)]
    if len(jobs) > 1:
        raise UsageError(f"--from holds rows of one job; --job names {len(jobs)}: {', '.join(jobs)}")
    return replace(planned, plans=tuple(with_letters(plan, letters) for plan in planned.plans))


def _read_letters(path: str) -> tuple[DeadLetter, ...]:
    from ortdeploy.ledger.letters import read_letters  # noqa: PLC0415  only who has some

    return read_letters(path)


def _with_last_good(planned: Planned, arguments: argparse.Namespace) -> Planned:
    """With --last-good, plan the last good versions of refused manifests in their place."""
    if not (arguments.last_good and has_errors(planned.diagnostics)):
        return planned
    from ortdeploy.planning.last_good import with_last_good  # noqa: PLC0415  only where something is refused

    return with_last_good(
        planned,
        arguments.paths,
        load_options(arguments),
        state_dir=arguments.state_dir,
        now=now(),
        jobs=arguments.jobs,
        excluded=arguments.excluded,
    )


def load_plan_file(arguments: argparse.Namespace, *, in_shards: bool) -> Planned | None:
    """Plan again from a plan file; None if the arguments name no plan file. `in_shards` is that of `plan_again`."""
    raw = _plan_file(arguments.paths)
    if raw is None:
        return None
    if getattr(arguments, "environment_profile", False):
        arguments.profile = None
    given = [flag for flag, name in _OPTIONS_OF_PLANS.items() if getattr(arguments, name, None)]
    if given:
        raise UsageError(f"{given[0]} is for manifests: a saved plan has been made with its own. Make the plan again")
    file = Path(arguments.paths[0])
    roots = tuple(os.path.abspath(root) for root in arguments.roots)  # noqa: PTH100  keeps links, as paths below do
    saved, diagnostics = load_plans(raw, str(file), plan_root(arguments.root, file), roots)
    if diagnostics:
        return Planned(plans=(), diagnostics=diagnostics)
    planned = plan_again(saved, roots, arguments.state_dir, in_shards=in_shards)
    if has_errors(planned.diagnostics):
        return replace(planned, plans=())
    if arguments.jobs is None and not arguments.excluded:
        return planned
    known = [name for plan in planned.plans for name in job_names(plan)]
    jobs = select_jobs(arguments.jobs, arguments.excluded, known)
    return replace(planned, plans=tuple(keep_jobs(plan, jobs) for plan in planned.plans))


def _plan_file(paths: Sequence[str]) -> bytes | None:
    """Return the bytes of a plan file; None if the path is a manifest or a folder."""
    path = Path(paths[0])
    if len(paths) != 1 or not is_file(path):
        return None
    try:
        with path.open("rb") as file:
            head = file.read(4096)
            return head + file.read(max(MAX_BYTES + 1 - len(head), 0)) if is_plan_file(head) else None
    except OSError:
        return None  # the loader says what is wrong with it


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
    run_id = uuid.uuid4().hex[:12]
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
        spec = next((one for one in planned.specs if os.path.abspath(one.path) == _manifest_of(plan)), None)  # noqa: PTH100
        if spec is not None and plan.steps and shard is None and engine is None:
            from ortdeploy.planning.last_run import keep_text  # noqa: PLC0415  only who runs something

            keep_text(spec, plan, state_dir, run_id)
        ended.append((plan, _run_one(plan, state_dir, run_id, arguments, stopped, shard=shard, engine=engine)))
        well = all(one.status is not Status.FAILED for one in ended[-1][1])
        if arguments.last_good and deployment is not None and well:
            from ortdeploy.planning.last_good import keep_good  # noqa: PLC0415  only who asks for it

            keep_good(deployment, state_dir, now())
    for plan in planned.stand_ins:
        if not stopped():
            state_dir = state_folder(plan.folder, arguments.state_dir, plan.roots)
            ended.append((plan, _run_one(plan, state_dir, run_id, arguments, stopped)))
    return ended


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
    if shard is None:
        note_gone_files(plan, state_dir)
    if engine is not None and plan.steps:
        from ortdeploy.cli.engines import run_on_engine  # noqa: PLC0415  only who has a cluster

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
    from ortdeploy.checks.run import PASSED  # noqa: PLC0415  only who has gates
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
