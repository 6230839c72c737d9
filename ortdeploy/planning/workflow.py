"""Planning as a series of functions: check the text (`validation`), join it with facts, judge, and make the plan.

`validate` ends after the check of the text, `plan` and `apply` call all of them.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ortdeploy.diagnostics import Certainty, Diagnostic, OrtdeployError, Span, UsageError, has_errors, sort_diagnostics
from ortdeploy.facts.counting import Counting
from ortdeploy.facts.problems import CARRIED_AWAY, CHANGED, WAITING, Problem
from ortdeploy.manifest.document import stage_diagnostic
from ortdeploy.manifest.loader import LoadOptions
from ortdeploy.manifest.spec import Spec
from ortdeploy.planning.devices.variants import by_device_file, on_this_machine
from ortdeploy.planning.job_names import chosen_jobs, select_jobs
from ortdeploy.planning.joining import join_facts, probe_host, usable_state
from ortdeploy.planning.judging import judge, judge_early, of_jobs
from ortdeploy.planning.planned import Planned
from ortdeploy.planning.probing.scope import Scope
from ortdeploy.planning.starting_over import rerun_by_themselves, startable, starting_with_readers
from ortdeploy.planning.validation import validate

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment
    from ortdeploy.facts.host import HostFacts
    from ortdeploy.plan.steps import Plan
    from ortdeploy.planning.last_run import Changes
    from ortdeploy.planning.tryout import Tryout

    _PlannedOne = tuple[Plan | None, Deployment | None, tuple[Diagnostic, ...], tuple[Changes, ...]]


def plan_manifests(
    paths: Sequence[str],
    options: LoadOptions,
    *,
    state_dir: str | None,
    jobs: Sequence[str] | None = None,
    excluded: Sequence[str] = (),
    device: str | None = None,
    new_run: bool = False,
    retry: bool = False,
    tryout: "Tryout | None" = None,
    counting: Counting = Counting.NOT,
) -> Planned:
    """Validate, probe, apply the rules, and write down the steps; `device` is a device file in place of this machine.

    `jobs` are names or globs of the wanted jobs (None: all), without those that are `excluded`. `new_run`: jobs whose
    result is unfinished, or has another origin, start over. `retry`: only failed rows of jobs are run. `tryout`: the
    first rows are run, with their results in its folder. `counting`: READ for a plan
    that fixes the parts of its jobs.
    """
    described, found = (None, ()) if device is None else _described(device)
    choose = on_this_machine(options, state_dir) if described is None else by_device_file(described)
    validated = validate(paths, options, choose=choose if device is None or described is not None else None)
    plans: list[Plan] = []
    deployments: list[Deployment] = []
    changes: list[Changes] = []
    diagnostics = validated.diagnostics + found
    if validated.specs:
        select_jobs(jobs, excluded, [job.name for spec in validated.specs for job in spec.jobs])
    host = described if device is not None else probe_host(validated.specs) if validated.specs else None
    how = {"new_run": new_run, "retry": retry, "elsewhere": device is not None}
    for spec in validated.specs:
        if host is None:
            break
        names = [job.name for job in spec.jobs]
        wanted = None if jobs is None and not excluded else chosen_jobs(jobs, excluded, names)
        asked = spec if tryout is None else tryout.of_spec(spec)
        plan_it = partial(_plan_one, asked, host, state_dir, wanted, counting=counting, **how)
        plan, deployment, found, changed = _isolated(asked, plan_it)
        diagnostics += assumed(found) if device else found
        changes += changed
        if plan is not None and deployment is not None:
            plans.append(plan if tryout is None else tryout.of_plan(plan))
            deployments.append(deployment)
    return Planned(
        plans=tuple(plans),
        diagnostics=sort_diagnostics(diagnostics),
        deployments=tuple(deployments),
        changes=tuple(changes),
        specs=validated.specs + validated.unchosen,
    )


def _described(device: str) -> "tuple[HostFacts | None, tuple[Diagnostic, ...]]":
    from ortdeploy.planning.devices.device_file import load_device  # noqa: PLC0415  only for another machine's plan

    return load_device(device)


def assumed(diagnostics: tuple[Diagnostic, ...]) -> tuple[Diagnostic, ...]:
    """Mark diagnostics as assumed, which on this machine would be proven, because another machine is described."""
    return tuple(
        replace(one, certainty=Certainty.ASSUMED) if one.certainty is Certainty.MACHINE else one for one in diagnostics
    )


def _isolated(spec: Spec, plan: "Callable[[], _PlannedOne]") -> "_PlannedOne":
    """Return what planning a manifest gives. A failure that is expected is reported, and stops no other manifest."""
    try:
        return plan()
    except UsageError:
        raise
    except OrtdeployError as error:
        return None, None, (unworkable(spec, error),), ()


def _plan_one(
    spec: Spec,
    host: "HostFacts",
    state_dir: str | None,
    jobs: Collection[str] | None,
    *,
    new_run: bool,
    retry: bool,
    elsewhere: bool,
    counting: Counting,
) -> "_PlannedOne":
    """Plan one manifest. Raises OrtdeployError for a failure that is expected, as of a damaged ledger."""
    from ortdeploy.planning.make.plan import make_plan  # noqa: PLC0415
    from ortdeploy.planning.remembered.graph_cache import remembered_in  # noqa: PLC0415

    state = usable_state(spec, state_dir)
    if not isinstance(state, Path):
        return None, None, state, ()
    with remembered_in(state):
        scope = Scope(counting=counting, elsewhere=elsewhere, new_run=new_run)
        deployment = join_facts(spec, host, state, scope)
        changes = () if elsewhere or retry else _changes_of_stale(deployment, state, jobs)
        deployment = _without_changes(deployment) if retry else deployment
        over = startable(deployment) if new_run else frozenset() if retry else rerun_by_themselves(deployment)
        stale = starting_with_readers({name for name in over if jobs is None or name in jobs}, deployment, jobs)
        if stale:
            deployment = join_facts(spec, host, state, replace(scope, stale=stale))
        chosen = {job.spec.name for job in deployment.jobs if jobs is None or job.spec.name in jobs}
        early = chosen & _carried_away_early(deployment)
        judged, diagnostics = judge(of_jobs(deployment, chosen - early), state, elsewhere=elsewhere)
    deployment = replace(judged, jobs=deployment.jobs)
    wanted = None if jobs is None and not early else chosen - early
    if has_errors(diagnostics) or (early and not wanted):
        plan = None
    else:
        plan = make_plan(deployment, wanted, retry=retry, new_run=new_run)
    return plan, deployment, diagnostics + judge_early(deployment, early), changes


def unworkable(spec: Spec, error: OrtdeployError) -> Diagnostic:
    """Return a failure that is expected as a diagnostic of the manifest that it stops."""
    return stage_diagnostic("unworkable-manifest", f"{error}.", Span(path=spec.path, line=1, column=1))


def _carried_away_early(deployment: "Deployment") -> frozenset[str]:
    """Return the jobs whose rows were carried away before they had read them, which keeps no other job from running."""
    problems = {job.spec.name: job.input.problem for job in deployment.jobs}
    return frozenset(name for name, problem in problems.items() if problem is not None and problem.kind == CARRIED_AWAY)


def _changes_of_stale(deployment: "Deployment", state: Path, jobs: Collection[str] | None) -> "tuple[Changes, ...]":
    """Return what has changed for the jobs whose last run had another origin."""
    from ortdeploy.planning.last_run import changes_since_last_run, stale_jobs  # noqa: PLC0415  numpy, by way of facts

    stale = stale_jobs(deployment)
    wanted = stale if jobs is None else stale.intersection(jobs)
    return changes_since_last_run(deployment, state, wanted) if wanted else ()


def compare_with_last_run(
    path: str, options: LoadOptions, state_dir: str | None
) -> "tuple[tuple[Changes, ...], tuple[Diagnostic, ...]]":
    """Return what has changed for each job of a manifest since its last run, or what is wrong with the text."""
    validated = validate([path], options, choose=on_this_machine(options, state_dir))
    diagnostics = validated.diagnostics
    states: list[tuple[Spec, Path]] = []
    for spec in validated.specs if not has_errors(diagnostics) else ():
        state = usable_state(spec, state_dir)
        if isinstance(state, Path):
            states.append((spec, state))
        else:
            diagnostics += state
    if has_errors(diagnostics):
        return (), diagnostics
    from ortdeploy.planning.last_run import changes_since_last_run  # noqa: PLC0415

    host = probe_host(validated.specs)
    found: tuple[Changes, ...] = ()
    for spec, state in states:
        found += changes_since_last_run(join_facts(spec, host, state), state, None)
    return found, diagnostics


def _without_changes(deployment: "Deployment") -> "Deployment":
    """Return the deployment for a retry, which ignores changes of files: it reads those of failed rows as they are."""
    jobs = []
    for job in deployment.jobs:
        problem = job.input.problem
        if problem is not None and problem.kind == CHANGED:  # none of its files is there
            problem = Problem(kind=WAITING, detail="its input files are gone")
        jobs.append(replace(job, input=replace(job.input, changed=(), problem=problem)))
    return replace(deployment, jobs=tuple(jobs))
