"""Makes the plans that commands show or run: from manifests, or from a plan file."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from ortdeploy.cli.command_line.manifest_options import load_options, plan_root
from ortdeploy.diagnostics import UsageError, has_errors
from ortdeploy.facts.counting import Counting
from ortdeploy.files.names import is_file, is_there
from ortdeploy.files.opening import open_regular
from ortdeploy.ledger.ledger import now
from ortdeploy.manifest.loader import LoadOptions
from ortdeploy.plan.selection import job_names, keep_jobs, run_jobs, with_letters
from ortdeploy.plan.steps import DeadLetter
from ortdeploy.planning.job_names import select_jobs
from ortdeploy.planning.plan_file.planning_again import plan_again
from ortdeploy.planning.plan_file.saved_plan import MAX_BYTES, OPEN, SavedPlan, is_plan_file, load_plans
from ortdeploy.planning.planned import Planned
from ortdeploy.planning.workflow import plan_manifests

_OPTIONS_OF_PLANS = {
    "--new-run": "new_run",
    "--last-good": "last_good",
    "--profile": "profile",
    "--set": "sets",
    "--overlay": "overlays",
}


def load_or_plan(arguments: argparse.Namespace, *, in_shards: bool, computes: bool = True) -> Planned:
    """Plan from manifests, or from a plan file; a plan file's manifest is planned again and compared."""
    is_driver = getattr(arguments, "engine", None) is not None
    if arguments.command == "apply":
        planned = load_plan_file(arguments, in_shards=in_shards, computes=computes, folds=is_driver)
        if planned is not None:
            return planned
    if in_shards:
        flag = "--engine" if is_driver else "--shard"
        raise UsageError(f"{flag} is for a saved plan, whose parts are fixed: ortdeploy plan --out PLAN saves one")
    if getattr(arguments, "root", None) is not None:
        other = " ".join(arguments.paths)
        raise UsageError(f"--root is for a saved plan, a bundle or an installed @NAME, and {other} is none of these")
    named = getattr(arguments, "letters", None)
    letters = None if named is None else _read_letters(named)
    planned = plan_as_asked(arguments, retry=arguments.command == "retry")
    if getattr(arguments, "taken", None) is not None and arguments.taken.passed:
        planned = replace(planned, plans=tuple(replace(plan, gates=()) for plan in planned.plans))
    if letters is None:
        return _with_last_good(planned, arguments)
    jobs = [step.job for plan in planned.plans for step in run_jobs(plan)]
    if len(jobs) > 1:
        raise UsageError(f"--from holds rows of one job; --job names {len(jobs)}: {', '.join(jobs)}")
    return replace(planned, plans=tuple(with_letters(plan, letters) for plan in planned.plans))


def plan_as_asked(
    arguments: argparse.Namespace,
    *,
    device: str | None = None,
    retry: bool = False,
    counting: Counting = Counting.NOT,
) -> Planned:
    """Plan the manifests and jobs that a command line names; what else is asked for differs from command to command."""
    return plan_manifests(
        arguments.paths,
        load_options(arguments),
        state_dir=arguments.state_dir,
        jobs=arguments.jobs,
        excluded=arguments.excluded,
        device=device,
        new_run=arguments.new_run,
        retry=retry,
        counting=counting,
    )


def _read_letters(path: str) -> tuple[DeadLetter, ...]:
    from ortdeploy.ledger.letters import read_letters  # noqa: PLC0415  only if there are some

    return read_letters(path)


def _with_last_good(planned: Planned, arguments: argparse.Namespace) -> Planned:
    """With --last-good, plan the last good versions of refused manifests in their place."""
    if not (arguments.last_good and has_errors(planned.diagnostics)):
        return planned
    from ortdeploy.planning.versions.last_good import with_last_good  # noqa: PLC0415  only where something is refused

    return with_last_good(
        planned,
        arguments.paths,
        load_options(arguments),
        state_dir=arguments.state_dir,
        now=now(),
        jobs=arguments.jobs,
        excluded=arguments.excluded,
    )


def load_plan_file(
    arguments: argparse.Namespace, *, in_shards: bool, computes: bool = True, folds: bool = False
) -> Planned | None:
    """Plan again from a plan file; None if the arguments name no plan file.

    `in_shards` and `computes` are those of `plan_again`. `folds`: this process writes the decisions of shards into the
    ledger; if that is lost, it is made again first. Raises UsageError if shards are asked of an open plan, or of no
    file, OrtdeployError, LockedError.
    """
    raw = _plan_file(arguments.paths)
    if raw is None:
        if in_shards and not is_there(Path(arguments.paths[0])):
            raise UsageError(f"there is no plan file {arguments.paths[0]}")
        return None
    _refuse_flags_of_manifests(arguments)
    file = Path(arguments.paths[0])
    roots = tuple(os.path.abspath(root) for root in arguments.roots)  # noqa: PTH100  keeps links, as paths below do
    saved, diagnostics = load_plans(raw, str(file), plan_root(arguments.root, file), roots)
    if diagnostics:
        return Planned(plans=(), diagnostics=diagnostics)
    if in_shards:
        _refuse_open_plans(saved, file)
    if folds:
        from ortdeploy.cli.rebuild_ledgers import make_lost_ledgers  # noqa: PLC0415  only for who writes them

        make_lost_ledgers(saved, roots, arguments.state_dir)
    options = LoadOptions(roots=roots) if in_shards else replace(load_options(arguments), roots=roots)
    planned = plan_again(saved, options, arguments.state_dir, in_shards=in_shards, computes=computes)
    return replace(planned, plans=()) if has_errors(planned.diagnostics) else _with_wanted_jobs(planned, arguments)


def saved_plans(arguments: argparse.Namespace) -> Sequence[SavedPlan]:
    """Return the plans of the plan file that a command line names; none if it names none, or one that is refused."""
    raw = _plan_file(arguments.paths)
    if raw is None:
        return ()
    file = Path(arguments.paths[0])
    roots = tuple(os.path.abspath(root) for root in arguments.roots)  # noqa: PTH100  as in load_plan_file
    return load_plans(raw, str(file), plan_root(getattr(arguments, "root", None), file), roots)[0]


def _refuse_flags_of_manifests(arguments: argparse.Namespace) -> None:
    """Raise UsageError for flags that a plan was made with; the profile of the environment does not count."""
    if getattr(arguments, "environment_profile", False):
        arguments.profile = None
    given = [flag for flag, name in _OPTIONS_OF_PLANS.items() if getattr(arguments, name, None)]
    if given:
        raise UsageError(f"{given[0]} is for manifests: a saved plan has been made with its own. Make the plan again")


def _refuse_open_plans(saved: Sequence[SavedPlan], file: Path) -> None:
    """Raise UsageError if a plan fixes no parts that shards could make."""
    if any(one.kind == OPEN for one in saved):
        raise UsageError(
            f"{file} is an open plan, made with --device, which fixes no rows and parts. --shard, --engine and finish "
            "need a bound plan: plan where the data is, with ortdeploy plan --bound --device FILE --out PLAN, or "
            "without --device on a machine like the workers"
        )


def _with_wanted_jobs(planned: Planned, arguments: argparse.Namespace) -> Planned:
    """Return plans with the jobs of --job and --exclude alone. Raises UsageError."""
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
        with open_regular(path) as file:
            head = file.read(4096)
            return head + file.read(max(MAX_BYTES + 1 - len(head), 0)) if is_plan_file(head) else None
    except OSError:
        return None  # the loader says what is wrong with it
