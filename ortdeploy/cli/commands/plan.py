"""`ortdeploy plan`: join manifests with facts, refuse what cannot work, and show what would run."""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from msgspec.structs import replace

from ortdeploy.cli.command_line.manifest_options import load_options, plan_root
from ortdeploy.cli.command_line.targets import Target, check_target
from ortdeploy.cli.commands.shared import (
    device_files,
    log_outcome,
    planning,
    start_logging,
    terminal_width,
    use_color,
    write_diagnostics,
    write_plan,
)
from ortdeploy.cli.exit_codes import EXIT_CHANGES, EXIT_OK, EXIT_REJECTED
from ortdeploy.cli.plans import plan_as_asked
from ortdeploy.diagnostics import OrtdeployError, UsageError, has_errors, sort_diagnostics
from ortdeploy.events import log
from ortdeploy.facts.counting import Counting
from ortdeploy.files.atomic import open_whole
from ortdeploy.manifest.loader import find_manifests
from ortdeploy.plan.selection import run_jobs
from ortdeploy.plan.steps import Plan
from ortdeploy.planning.judging import judge_memory
from ortdeploy.planning.plan_file.plan_writing import PlanToSave, dump_plans
from ortdeploy.planning.plan_file.saved_plan import BOUND, OPEN, misplaced
from ortdeploy.planning.plan_file.saved_rows import rows_of_plan
from ortdeploy.planning.planned import Planned
from ortdeploy.planning.state_folder import state_folder
from ortdeploy.versions import package_version
from ortdeploy.views import device_table, github, json, text


def run(arguments: argparse.Namespace) -> int:
    """Plan and print; with --out, save the plan if nothing was refused."""
    _check_flags(arguments)
    devices = device_files(arguments.devices or ())
    if devices and arguments.out is None and not arguments.bound:
        return _show_devices(arguments, devices)
    if len(devices) > 1:
        raise UsageError(f"--out and --bound plan for one device, and --device names {len(devices)}")
    return _show_plan(arguments, devices[0] if devices else None)


def _show_plan(arguments: argparse.Namespace, device: str | None) -> int:
    """Print the plan for one machine, and save it if that is asked for."""
    is_bound = arguments.bound or device is None
    counting = Counting.READ if arguments.out is not None and is_bound else Counting.NOT
    with planning(arguments):
        planned = plan_as_asked(arguments, device=device, counting=counting)
    if arguments.measure:
        planned = _with_measured(planned, arguments)
    arguments.planned = planned  # by which a bundle is refused
    rejected = has_errors(planned.diagnostics)
    if arguments.format == "json":
        sys.stdout.write(json.render_plan(planned.diagnostics, planned.plans, planned.changes))
    else:
        write_diagnostics(planned.diagnostics, arguments)
    if arguments.format == "github":
        sys.stdout.write(github.render_plan(planned.plans))
    if arguments.format == "text" and not arguments.quiet:
        sys.stdout.write(text.render_changes(planned.changes, color=use_color(arguments)))
    if arguments.format == "text" and (planned.plans or not rejected) and not arguments.quiet:
        write_plan(planned.plans, arguments)
    changes = any(plan.steps for plan in planned.plans)
    log_outcome(arguments, "plan.made", rejected=rejected, changes=changes, diagnostics=len(planned.diagnostics))
    if rejected:
        return EXIT_REJECTED
    if arguments.bound:
        _check_inputs(planned)
    if arguments.out:
        plans = [_bound(plan, arguments) if is_bound else _open(plan) for plan in planned.plans]
        _save(plans, BOUND if is_bound else OPEN, arguments)
        if is_bound:
            _tell_what_is_not_shared(planned, arguments)
    return EXIT_CHANGES if changes and arguments.detailed_exitcode else EXIT_OK


def _with_measured(planned: Planned, arguments: argparse.Namespace) -> Planned:
    """Return plans with what their jobs take of memory; those that do not fit are refused."""
    from ortdeploy.cli.children.memory import with_measured_memory  # noqa: PLC0415  only if asked for

    plans: list[Plan] = []
    diagnostics = planned.diagnostics
    with ExitStack() as stack:
        start_logging(arguments, stack)
        for plan, deployment in zip(planned.plans, planned.deployments, strict=True):
            state_dir = state_folder(plan.folder, arguments.state_dir, plan.roots)
            measured, _ = with_measured_memory(plan, state_dir, always=True)
            found = judge_memory(deployment, measured)
            diagnostics += found
            plans += [] if has_errors(found) else [measured]
    return replace(planned, plans=tuple(plans), diagnostics=sort_diagnostics(diagnostics))


def _show_devices(arguments: argparse.Namespace, devices: Sequence[str]) -> int:
    """Print what each job does on each device; for one device alone, also the plan."""
    from ortdeploy.planning.devices.device_table import plan_devices  # noqa: PLC0415  only for devices

    with planning(arguments):
        table = plan_devices(
            arguments.paths,
            load_options(arguments),
            devices,
            jobs=arguments.jobs,
            excluded=arguments.excluded,
            state_dir=arguments.state_dir,
        )
    if arguments.format == "json":
        sys.stdout.write(json.render_devices(table))
    else:
        write_diagnostics(table.findings, arguments)
    if arguments.format == "github":
        sys.stdout.write(device_table.render_markdown(table.entries))
    if arguments.format == "text" and table.plans and not arguments.quiet:
        write_plan(table.plans, arguments)
    if arguments.format == "text" and table.entries and not arguments.quiet:
        color, width = use_color(arguments), terminal_width(sys.stdout)
        sys.stdout.write(device_table.render_table(table.entries, color=color, width=width))
    runs = any(one.refused is None for one in table.entries)
    log_outcome(arguments, "plan.made", rejected=table.is_refused, changes=runs, diagnostics=len(table.findings))
    if table.is_refused:
        return EXIT_REJECTED
    return EXIT_CHANGES if runs and arguments.detailed_exitcode else EXIT_OK


def _check_flags(arguments: argparse.Namespace) -> None:
    """Refuse flags that do not go together, and a place from which a plan cannot name its manifests.

    Raises UsageError.
    """
    if arguments.devices and arguments.labels:
        raise UsageError("--label is about this machine, and a device file has the labels of its own")
    if arguments.devices and arguments.new_run:
        raise UsageError("--new-run is about what this machine's ledger knows, and --device plans for another machine")
    if arguments.devices and arguments.measure:
        raise UsageError("--measure runs rows on this machine, and --device plans for another machine")
    if arguments.out is None:
        if arguments.root is not None:
            raise UsageError("--root says what the paths of a saved plan are relative to: it goes with --out")
        return
    check_target("--out", arguments.out, Target.PLAN, arguments)
    root = plan_root(arguments.root, Path(arguments.out))
    roots = [os.path.abspath(one) for one in arguments.roots]  # noqa: PTH100  without following links
    stray = misplaced(find_manifests(arguments.paths)[0], arguments.overlays, root, roots)
    if stray is not None:
        raise UsageError(
            f"--out: {stray} does not lie below {root}, and a plan file names only what does. Save the plan in a "
            "folder above it, or name such a folder with --root, for ortdeploy apply too"
        )


def _check_inputs(planned: Planned) -> None:
    """Refuse a plan whose files and rows are not known, if it is to fix them. Raises OrtdeployError."""
    for step in (step for plan in planned.plans for step in run_jobs(plan)):
        if step.input.elsewhere is not None:
            raise OrtdeployError(
                f'the data of job "{step.job}" was not looked at, and a bound plan fixes files and rows. '
                f"{step.input.elsewhere} Plan where the data is, or without --bound: apply then binds the files"
            )


def _bound(plan: Plan, arguments: argparse.Namespace) -> PlanToSave:
    """Return a plan with its files, rows and parts."""
    return PlanToSave(plan=plan, rows=rows_of_plan(plan, state_folder(plan.folder, arguments.state_dir, plan.roots)))


def _open(plan: Plan) -> PlanToSave:
    """Return a plan for another machine, with the files of those jobs alone whose data was looked at here."""
    seen = {step.job for step in run_jobs(plan) if step.input.elsewhere is None}
    return PlanToSave(plan=replace(plan, inputs=tuple(one for one in plan.inputs if one.job in seen)))


def _save(plans: Sequence[PlanToSave], kind: str, arguments: argparse.Namespace) -> None:
    path = Path(arguments.out)
    root, version = plan_root(arguments.root, path), package_version("ortdeploy")
    try:
        text = dump_plans(plans, root, version, path, kind)
        with open_whole(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise OrtdeployError(f"the plan cannot be written to {path}: {error.strerror}") from error


def _tell_what_is_not_shared(planned: Planned, arguments: argparse.Namespace) -> None:
    """Warn of jobs that --shard and --engine would refuse. Whether the place can decide, each process tries itself."""
    from ortdeploy.jobs.shard_run import why_not_shared  # noqa: PLC0415  only for a plan that is saved

    steps = [step for plan in planned.plans for step in run_jobs(plan)]
    reasons = [(step.job, reason) for step in steps if (reason := why_not_shared(step)) is not None]
    if not reasons:
        return
    with ExitStack() as stack:
        start_logging(arguments, stack)
        for job, reason in reasons:
            log.warning("plan.not_shared", job=job, reason=reason)
