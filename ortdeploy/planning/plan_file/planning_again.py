"""Plans the manifests of a plan file again, and says what has changed."""

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ortdeploy.diagnostics import Diagnostic, OrtdeployError, has_errors, sort_diagnostics
from ortdeploy.facts.counting import Counting
from ortdeploy.facts.variants import ENVIRONMENT, FLAG, NO_PROFILE
from ortdeploy.manifest.document import stage_diagnostic
from ortdeploy.manifest.loader import Loaded, LoadOptions, load_manifest
from ortdeploy.manifest.spec import Spec
from ortdeploy.planning.devices.variants import on_this_machine
from ortdeploy.planning.joining import join_facts, probe_host, usable_state
from ortdeploy.planning.judging import judge
from ortdeploy.planning.planned import Planned
from ortdeploy.planning.probing.scope import Scope
from ortdeploy.planning.starting_over import startable
from ortdeploy.planning.validation import check_specs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ortdeploy.deployment.resolved import Deployment
    from ortdeploy.facts.host import HostFacts
    from ortdeploy.plan.steps import Plan
    from ortdeploy.planning.devices.variants import Choose
    from ortdeploy.planning.plan_file.saved_plan import SavedPlan


def plan_again(
    saved: "Sequence[SavedPlan]",
    options: LoadOptions,
    state_dir: str | None,
    *,
    in_shards: bool = False,
    computes: bool = True,
) -> Planned:
    """Make the plans of a plan file again, from their manifests and the facts of now; report whatever has changed.

    The returned plans were made here; only what is said of the manifest, and the names of what was asked for, are from
    the file. `options` say which roots are allowed, and what this machine is called.
    `in_shards`: other processes may be at work on the outputs. `computes`: this one makes results, so its machine must
    be the one that the plan was made for.
    """
    plans: list[Plan] = []
    specs: list[Spec] = []
    diagnostics: tuple[Diagnostic, ...] = ()
    for one in saved:
        loaded = load_manifest(one.manifest, options_of(one, options))
        loaded, problem = _with_saved_choice(one, loaded, on_this_machine(options, state_dir))
        if problem is None:
            plan, found = _plan_saved(one, loaded, state_dir, in_shards=in_shards, computes=computes)
        else:
            plan, found = None, (*loaded.diagnostics, problem)
        diagnostics += found
        specs += [loaded.spec] if loaded.spec is not None else []
        if plan is not None:
            plans.append(plan)
    return Planned(plans=tuple(plans), diagnostics=sort_diagnostics(diagnostics), specs=tuple(specs))


def options_of(saved: "SavedPlan", options: LoadOptions) -> LoadOptions:
    """Return how the manifest of a saved plan is read; the `when` of an open plan are asked again."""
    from ortdeploy.planning.plan_file.saved_plan import OPEN  # noqa: PLC0415  only for saved plans

    choice = saved.choice
    is_asked = choice is None or choice.reason in {FLAG, ENVIRONMENT} or saved.kind != OPEN
    fixed = saved.profile or (NO_PROFILE if choice else None)
    return replace(options, profile=fixed if is_asked else None, sets=saved.sets, overlays=saved.overlays)


def _with_saved_choice(saved: "SavedPlan", loaded: Loaded, choose: "Choose") -> tuple[Loaded, Diagnostic | None]:
    """Return a manifest with the plan's choice; that of an open plan must be this machine's too."""
    from ortdeploy.planning.plan_file.saved_comparison import moved_fact  # noqa: PLC0415  only for saved plans

    then = [fact.value for fact in saved.facts if fact.kind == "manifest"]
    if loaded.spec is None or saved.choice is None or [loaded.spec.sha256] != then:
        return loaded, None
    if loaded.choosable is None:
        return replace(loaded, spec=replace(loaded.spec, choice=saved.choice)), None
    spec, problem = choose(loaded)
    if spec is not None and spec.profile != saved.profile:
        problem = moved_fact(saved, "profile", f"{saved.profile or 'base'}, and {spec.profile or 'base'} holds here")
    return replace(loaded, spec=spec or loaded.spec), problem


def _plan_saved(
    saved: "SavedPlan", loaded: Loaded, state_dir: str | None, *, in_shards: bool, computes: bool
) -> "tuple[Plan | None, tuple[Diagnostic, ...]]":
    """Plan with a plan file's options, and compare facts and steps with the file's."""
    from ortdeploy.planning.make.plan import make_plan  # noqa: PLC0415
    from ortdeploy.planning.plan_file.saved_comparison import compare, moved_facts, planned_host  # noqa: PLC0415

    then = [fact for fact in saved.facts if fact.kind == "manifest"]
    if loaded.spec is None or [loaded.spec.sha256] != [fact.value for fact in then]:
        return None, (_other_manifest(saved), *(() if loaded.spec else loaded.diagnostics))
    found = loaded.diagnostics + check_specs(loaded)
    unknown = sorted(set(saved.jobs or ()) - {job.name for job in loaded.spec.jobs})
    if unknown:
        found += (stage_diagnostic("edited-plan", f'{saved.at}: there is no job "{unknown[0]}".', saved.span),)
    if has_errors(found):
        return None, found
    state = usable_state(loaded.spec, state_dir)
    if not isinstance(state, Path):
        return None, state
    damaged = _keep_rows(saved, state) if in_shards else ()
    if damaged:
        return None, damaged
    here = probe_host([loaded.spec])
    host = here if computes else planned_host(saved, here)
    deployment = _resolve_saved(saved, loaded.spec, host, state, in_shards=in_shards)
    deployment = _with_shared_outputs(deployment) if in_shards else deployment
    moved = moved_facts(saved, deployment, computes=computes)
    if moved:
        return None, moved
    deployment, judged = judge(deployment, state, elsewhere=not computes)
    if has_errors(judged):
        return None, found + judged
    differing = compare(saved, _as_saved(saved, deployment, host, state))
    if differing is not None:
        return None, (differing,)
    return make_plan(deployment, saved.jobs), found + judged


def _keep_rows(saved: "SavedPlan", state: Path) -> tuple[Diagnostic, ...]:
    """Put the indexes of a plan file into the state folder; return what is wrong with them."""
    from ortdeploy.planning.plan_file.saved_plan import unreadable  # noqa: PLC0415
    from ortdeploy.planning.plan_file.saved_rows import keep_rows  # noqa: PLC0415  only for shards

    try:
        keep_rows(saved, state)
    except OrtdeployError as error:
        return (unreadable(saved.file, f"{error}."),)
    return ()


def _as_saved(saved: "SavedPlan", deployment: "Deployment", host: "HostFacts", state: Path) -> "Plan":
    """Return the plan that the file must have: an open plan knows of no files that came after it."""
    from ortdeploy.planning.make.plan import make_plan  # noqa: PLC0415
    from ortdeploy.planning.plan_file.saved_plan import OPEN  # noqa: PLC0415

    if saved.kind != OPEN:
        return make_plan(deployment, saved.jobs, due=saved.due)
    unseen = {job.spec.name for job in deployment.jobs if job.upstream is None} - saved.inputs.keys()
    scope = Scope(elsewhere=True, planned=saved.named_files, unseen=unseen)
    assumed = join_facts(deployment.spec, host, state, scope)
    return make_plan(assumed, saved.jobs)


def _other_manifest(saved: "SavedPlan") -> Diagnostic:
    """Return the diagnostic for a manifest that is not the plan's: it has changed, or the plan file was moved."""
    from ortdeploy.planning.plan_file.saved_comparison import moved_fact  # noqa: PLC0415  loaded already

    found = moved_fact(saved, "manifest", Path(saved.manifest).name)
    where = f"It was looked for as {saved.manifest}. If the plan file was moved, say with --root DIR which folder"
    return replace(found, detail=f"{found.detail} {where} its paths are relative to.")


def _resolve_saved(saved: "SavedPlan", spec: Spec, host: "HostFacts", state: Path, *, in_shards: bool) -> "Deployment":
    """Join spec and facts; a job of the file that was to start over does so if the run to replace is still the last.

    Files that arrived after a bound plan was made belong to the next one.
    """
    counting = Counting.TOLD if in_shards else Counting.NOT
    scope = Scope(counting=counting, planned=saved.fixed_files, new_run=bool(saved.starts_over))
    deployment = join_facts(spec, host, state, scope)
    last = {job.spec.name: job.output.run for job in deployment.jobs}
    stale = {name for name in startable(deployment) if saved.starts_over.get(name, "") == last[name]}
    return join_facts(spec, host, state, replace(scope, stale=stale)) if stale else deployment


def _with_shared_outputs(deployment: "Deployment") -> "Deployment":
    """Return the deployment for a shard, which may write into outputs that others began, unknown to the ledger."""
    jobs = []
    for job in deployment.jobs:
        unknown = job.output.shards is not None and job.output.state == "foreign"
        output = replace(job.output, shards=None, state="empty" if unknown else job.output.state)
        jobs.append(replace(job, output=output))
    return replace(deployment, jobs=tuple(jobs))
