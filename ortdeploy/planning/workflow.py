"""Planning as a series of functions: load, check the text, probe, resolve, judge, plan.

`validate` ends after the check of the text, `plan` and `apply` call all of them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.diagnostics import (
    Certainty,
    Diagnostic,
    OrtdeployError,
    Severity,
    Span,
    UsageError,
    did_you_mean,
    has_errors,
    sort_diagnostics,
)
from ortdeploy.facts.counting import Counting
from ortdeploy.facts.preflight import Preflight
from ortdeploy.facts.problems import CARRIED_AWAY, CHANGED, WAITING, Problem
from ortdeploy.facts.variants import ENVIRONMENT, FLAG, NO_PROFILE
from ortdeploy.files.gate import outside
from ortdeploy.files.urls import is_url
from ortdeploy.manifest.document import stage_diagnostic
from ortdeploy.manifest.job_order import with_readers
from ortdeploy.manifest.loader import Loaded, LoadOptions, find_manifests, load_manifest
from ortdeploy.manifest.named_paths import option_path, pinned_files
from ortdeploy.manifest.op_steps import ONNX
from ortdeploy.manifest.spec import Spec
from ortdeploy.plan.selection import run_jobs
from ortdeploy.planning.devices.variants import by_device_file, on_this_machine
from ortdeploy.planning.planned import Planned
from ortdeploy.planning.state_folder import state_folder
from ortdeploy.providers.catalogue import find_provider, full_name
from ortdeploy.providers.option_files import needed_libraries
from ortdeploy.rules.catalogue import (
    DEPLOYMENT_RULES,
    OPENING_RULES,
    PREFLIGHT_RULES,
    SPEC_RULES,
    load_rule,
    load_rules,
)
from ortdeploy.rules.protocol import check_rules

if TYPE_CHECKING:
    from ortdeploy.deployment.op_names import KnownOperators
    from ortdeploy.deployment.resolved import Deployment, ResolvedJob
    from ortdeploy.facts.facts import Facts
    from ortdeploy.facts.host import HostFacts
    from ortdeploy.plan.steps import Plan, PlannedCheck
    from ortdeploy.planning.devices.variants import Choose
    from ortdeploy.planning.last_run import Changes
    from ortdeploy.planning.plan_file.saved_plan import SavedPlan
    from ortdeploy.planning.tryout import Tryout

    _PlannedOne = tuple[Plan | None, Deployment | None, tuple[Diagnostic, ...], tuple[Changes, ...]]


class Validated(Struct, frozen=True, kw_only=True):
    """Manifests whose text was checked, and the diagnostics. A manifest has a spec if its text has no error.

    `unchosen` have one too, and no profile could be chosen. `variants` are the specs with each profile, if none was
    asked for. `manifests` and `devices` are the numbers of manifests and of device files that were looked at.
    """

    specs: tuple[Spec, ...]
    diagnostics: tuple[Diagnostic, ...]
    manifests: int = 0
    devices: int = 0
    unchosen: tuple[Spec, ...] = ()
    variants: tuple[Spec, ...] = ()

    @property
    def all_specs(self) -> tuple[Spec, ...]:
        """The specs of all that may run here."""
        return self.specs + self.variants


def validate(
    paths: Sequence[str], options: LoadOptions, *, devices: bool = False, choose: "Choose | None" = None
) -> Validated:
    """Check texts, shapes, names and the rules that need no machine; `devices`: device files may be among the paths.

    `choose` takes one of the profiles; without it, each spec is that of the manifest without any.
    """
    read = read_manifests(paths, options, devices=devices)
    diagnostics = read.diagnostics
    specs: list[Spec] = []
    unchosen: list[Spec] = []
    for loaded, base in read.accepted:
        spec, problem = (base, None) if choose is None else choose(loaded)
        diagnostics += () if problem is None else (problem,)
        specs += [] if spec is None else [spec]
        unchosen += [base] if spec is None else []
    return Validated(
        specs=tuple(specs),
        diagnostics=sort_diagnostics(diagnostics),
        manifests=read.manifests,
        devices=read.devices,
        unchosen=tuple(unchosen),
        variants=tuple(one for loaded, _ in read.accepted for one in loaded.variants),
    )


class Read(Struct, frozen=True, kw_only=True):
    """Manifests whose text has no error, with their specs without a profile, or with the one that was asked for.

    The other fields are those of Validated.
    """

    accepted: tuple[tuple[Loaded, Spec], ...]
    diagnostics: tuple[Diagnostic, ...]
    manifests: int
    devices: int


def read_manifests(
    paths: Sequence[str], options: LoadOptions, *, devices: bool = False, elsewhere: bool = False
) -> Read:
    """Read manifests and check them as `validate` does; `elsewhere`: what this machine lacks is no finding."""
    files, diagnostics = find_manifests(paths)
    accepted: list[tuple[Loaded, Spec]] = []
    described = 0
    for path in files:
        loaded = load_manifest(path, options, devices=devices)
        described += loaded.is_device
        found = loaded.diagnostics + _check_specs(loaded)
        if elsewhere:
            found = tuple(one for one in found if one.certainty is not Certainty.MACHINE)
        diagnostics += found
        if loaded.spec is not None and not has_errors(found):
            accepted.append((loaded, loaded.spec))
    manifests = len(files) - described
    return Read(accepted=tuple(accepted), diagnostics=diagnostics, manifests=manifests, devices=described)


def _check_specs(loaded: Loaded) -> tuple[Diagnostic, ...]:
    found: tuple[Diagnostic, ...] = ()
    rules = load_rules(SPEC_RULES)
    for spec in (loaded.spec, *loaded.variants):
        if spec is not None:
            found += check_rules(rules, spec, spec)
    return found


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
        wanted = None if jobs is None and not excluded else _chosen(jobs, excluded, names)
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


def plan_checks(
    paths: Sequence[str],
    options: LoadOptions,
    *,
    state_dir: str | None,
    only_model: str | None = None,
    leak_runs: int = 0,
) -> "tuple[tuple[PlannedCheck, ...], tuple[Diagnostic, ...]]":
    """Validate, probe the models, apply the rules, and write down golden checks; jobs are left out.

    `leak_runs`: instead of golden checks, every model is run this number of times and watched for a leak.
    """
    from ortdeploy.planning.make.checks import make_checks, make_leak_checks  # noqa: PLC0415

    validated = validate(paths, options, choose=on_this_machine(options, state_dir))
    diagnostics = validated.diagnostics
    if not validated.specs:
        return (), diagnostics
    names = [model.name for spec in validated.specs for model in spec.models]
    if only_model is not None and only_model not in names:
        raise UsageError(f'--model: there is no model "{only_model}". {did_you_mean(only_model, names)}')
    host = probe_host(validated.specs)
    checks: tuple[PlannedCheck, ...] = ()
    for spec in validated.specs:
        diagnostics += () if leak_runs else _nothing_to_check(spec, only_model)
        state = usable_state(spec, state_dir)
        if not isinstance(state, Path):
            diagnostics += state
            continue
        alone = _models_to_check(spec, only_model, with_checks=not leak_runs)
        deployment, found = judge(join_facts(alone, host, state), state)
        diagnostics += found
        if has_errors(found):
            continue
        checks += make_leak_checks(deployment, names, leak_runs) if leak_runs else make_checks(deployment, names)
    return checks, sort_diagnostics(diagnostics)


def _models_to_check(spec: Spec, only_model: str | None, *, with_checks: bool) -> Spec:
    """Return a spec without jobs and pipelines, and with the wanted models; `with_checks`: those that have checks."""
    of_adapters = {adapter.model for adapter in spec.adapters if adapter.checks}
    models = tuple(
        model
        for model in spec.models
        if (model.checks or model.name in of_adapters or not with_checks) and only_model in {None, model.name}
    )
    adapters = tuple(adapter for adapter in spec.adapters if adapter.model in {model.name for model in models})
    return replace(spec, jobs=(), pipelines=(), models=models, adapters=adapters)


def _nothing_to_check(spec: Spec, only_model: str | None) -> tuple[Diagnostic, ...]:
    """Report that no wanted model has a check, unless the manifest says so for each of them."""
    models = [model for model in spec.models if only_model in {None, model.name}]
    checked = {model.name for model in models if model.checks} | {one.model for one in spec.adapters if one.checks}
    if checked.intersection(model.name for model in models) or all(model.unchecked for model in models):
        return ()
    first = next(model for model in models if not model.unchecked)
    which = f'Model "{first.name}" has no' if len(models) == 1 else "None of the models has"
    detail = (
        f"{which} golden inputs and outputs, so nothing would be checked. Name their folders with checks: [FOLDER]; "
        "ortdeploy check --record writes the outputs. Or say with checks: [] that there are none."
    )
    return (replace(stage_diagnostic("nothing-to-check", detail, spec.locate(first.at, key=True)), model=first.name),)


def look_at_files(spec: Spec, state_dir: str | None) -> "tuple[Spec, Facts] | tuple[Diagnostic, ...]":
    """Return a manifest with paths for its URLs, and the facts of all files that it names, or what is wrong.

    Inputs and outputs are not looked at.
    """
    from ortdeploy.planning.probing.fetched_files import with_fetched  # noqa: PLC0415
    from ortdeploy.planning.probing.probe import probe  # noqa: PLC0415
    from ortdeploy.planning.remembered.graph_cache import remembered_in  # noqa: PLC0415

    state = usable_state(spec, state_dir)
    if not isinstance(state, Path):
        return state
    with remembered_in(state):
        here = with_fetched(spec, state)
        jobs = {job.name for job in spec.jobs}
        host = probe_host([])  # a library that the manifest names need not be loaded here
        return here, probe(here, state, host, elsewhere=True, unseen=jobs)


def check_job_name(job: str, known: Sequence[str], flag: str = "--job") -> None:
    """Refuse a --job, or another flag, that names no job. Raises UsageError."""
    if job not in known:
        raise UsageError(f'{flag}: there is no job "{job}". {did_you_mean(job, known)}')


def select_jobs(wanted: Sequence[str] | None, excluded: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Return the jobs that --job names, or all, without those of --exclude, by name or glob. Raises UsageError."""
    for flag, names in (("--job", wanted or ()), ("--exclude", excluded)):
        for name in names:
            if not _matching([name], known):
                check_job_name(name, known, flag)
    chosen = _chosen(wanted, excluded, known)
    if excluded and not chosen:
        raise UsageError("--exclude leaves no job")
    return chosen


def _chosen(wanted: Sequence[str] | None, excluded: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    left_out = _matching(excluded, known)
    return tuple(name for name in (known if wanted is None else _matching(wanted, known)) if name not in left_out)


def _matching(wanted: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in known if any(name == one or fnmatchcase(name, one) for one in wanted))


def _described(device: str) -> "tuple[HostFacts | None, tuple[Diagnostic, ...]]":
    from ortdeploy.planning.devices.device_file import load_device  # noqa: PLC0415  only for another machine's plan

    return load_device(device)


def assumed(diagnostics: tuple[Diagnostic, ...]) -> tuple[Diagnostic, ...]:
    """Mark diagnostics as assumed, which on this machine would be proven, because another machine is described."""
    return tuple(
        replace(one, certainty=Certainty.ASSUMED) if one.certainty is Certainty.MACHINE else one for one in diagnostics
    )


def probe_host(specs: Sequence[Spec]) -> "HostFacts":
    """Return the facts of this machine, with the plugin packages that manifests ask for."""
    from ortdeploy.facts.host import HostFacts  # noqa: PLC0415
    from ortdeploy.runtime.machine import probe_machine  # noqa: PLC0415
    from ortdeploy.runtime.probe import probe_runtime  # noqa: PLC0415  validate must not import onnxruntime

    wanted: dict[str, str | None] = {}
    strays: dict[str, str] = {}
    of_options: dict[str, set[str]] = {}
    for spec in specs:
        for entry in (entry for chain in spec.written_chains() for entry in chain):
            name = full_name(entry.name)
            library = option_path(spec, entry.library) if entry.library else None
            if library and outside(library, (spec.folder, *spec.roots)):
                strays[name] = f"Its library {entry.library} is a link out of the manifest's folder tree."
            else:
                wanted[name] = library or wanted.get(name)
                needed = needed_libraries(find_provider(entry.name), entry.options)
                of_options.setdefault(name, set()).update(file for _, file in needed)
    facts = probe_runtime({name: library for name, library in wanted.items() if name not in strays}, of_options)
    runtime = replace(facts, plugin_problems={**facts.plugin_problems, **strays})
    return HostFacts(runtime=runtime, machine=probe_machine())


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
        deployment = join_facts(spec, host, state, counting=counting, elsewhere=elsewhere, new_run=new_run)
        changes = () if elsewhere or retry else _changes_of_stale(deployment, state, jobs)
        deployment = _without_changes(deployment) if retry else deployment
        startable = _startable(deployment) if new_run else frozenset() if retry else _rerun_by_themselves(deployment)
        stale = _with_readers({name for name in startable if jobs is None or name in jobs}, deployment, jobs)
        if stale:
            deployment = join_facts(spec, host, state, stale, counting=counting, new_run=new_run)
        chosen = {job.spec.name for job in deployment.jobs if jobs is None or job.spec.name in jobs}
        early = chosen & _carried_away_early(deployment)
        judged, diagnostics = judge(of_jobs(deployment, chosen - early), state, elsewhere=elsewhere)
    deployment = replace(judged, jobs=deployment.jobs)
    wanted = None if jobs is None and not early else chosen - early
    if has_errors(diagnostics) or (early and not wanted):
        plan = None
    else:
        plan = make_plan(deployment, wanted, retry=retry, new_run=new_run)
    return plan, deployment, diagnostics + _judge_early(deployment, early), changes


def unworkable(spec: Spec, error: OrtdeployError) -> Diagnostic:
    """Return a failure that is expected as a diagnostic of the manifest that it stops."""
    return stage_diagnostic("unworkable-manifest", f"{error}.", Span(path=spec.path, line=1, column=1))


def _carried_away_early(deployment: "Deployment") -> frozenset[str]:
    """Return the jobs whose rows were carried away before they had read them, which keeps no other job from running."""
    problems = {job.spec.name: job.input.problem for job in deployment.jobs}
    return frozenset(name for name, problem in problems.items() if problem is not None and problem.kind == CARRIED_AWAY)


def of_jobs(deployment: "Deployment", names: Collection[str]) -> "Deployment":
    """Return a deployment as if it had some of its jobs only."""
    return replace(deployment, jobs=tuple(job for job in deployment.jobs if job.spec.name in names))


def _judge_early(deployment: "Deployment", names: Collection[str]) -> tuple[Diagnostic, ...]:
    """Return what keeps these jobs from running; other findings about them wait until that is mended."""
    if not names:
        return ()
    found = check_rules(load_rules(DEPLOYMENT_RULES), of_jobs(deployment, names), deployment.spec)
    return tuple(one for one in found if one.job in names and one.severity is Severity.ERROR)


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


def _plan_saved(
    saved: "SavedPlan", loaded: Loaded, state_dir: str | None, *, in_shards: bool, computes: bool
) -> "tuple[Plan | None, tuple[Diagnostic, ...]]":
    """Plan with a plan file's options, and compare facts and steps with the file's."""
    from ortdeploy.planning.make.plan import make_plan  # noqa: PLC0415
    from ortdeploy.planning.plan_file.saved_comparison import compare, moved_facts, planned_host  # noqa: PLC0415

    then = [fact for fact in saved.facts if fact.kind == "manifest"]
    if loaded.spec is None or [loaded.spec.sha256] != [fact.value for fact in then]:
        return None, (_other_manifest(saved), *(() if loaded.spec else loaded.diagnostics))
    found = loaded.diagnostics + _check_specs(loaded)
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
    assumed = join_facts(deployment.spec, host, state, elsewhere=True, planned=saved.named_files, unseen=unseen)
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
    planned = saved.fixed_files
    counting = Counting.TOLD if in_shards else Counting.NOT
    new_run = bool(saved.starts_over)
    deployment = join_facts(spec, host, state, counting=counting, planned=planned, new_run=new_run)
    last = {job.spec.name: job.output.run for job in deployment.jobs}
    stale = {name for name in _startable(deployment) if saved.starts_over.get(name, "") == last[name]}
    if not stale:
        return deployment
    return join_facts(spec, host, state, stale, counting=counting, planned=planned, new_run=new_run)


def _startable(deployment: "Deployment") -> frozenset[str]:
    """Return the jobs that --new-run starts over: their result is this ledger's, and unfinished or of another origin.

    Or shards have made it, and have not finished, or the ledger that knows it is lost. New files alone do not change a
    result: they run after what is there, as always.
    """
    return frozenset(job.spec.name for job in deployment.jobs if job.readable and _is_startable(job))


def _is_startable(job: "ResolvedJob") -> bool:
    output = job.output
    if output.shards == "open" or (output.shards is not None and output.state == "foreign"):
        return True
    return output.state == "part" or (output.state == "finished" and not job.is_current)


def _without_changes(deployment: "Deployment") -> "Deployment":
    """Return the deployment for a retry, which ignores changes of files: it reads those of failed rows as they are."""
    jobs = []
    for job in deployment.jobs:
        problem = job.input.problem
        if problem is not None and problem.kind == CHANGED:  # none of its files is there
            problem = Problem(kind=WAITING, detail="its input files are gone")
        jobs.append(replace(job, input=replace(job.input, changed=(), problem=problem)))
    return replace(deployment, jobs=tuple(jobs))


def _with_shared_outputs(deployment: "Deployment") -> "Deployment":
    """Return the deployment for a shard, which may write into outputs that others began, unknown to the ledger."""
    jobs = []
    for job in deployment.jobs:
        unknown = job.output.shards is not None and job.output.state == "foreign"
        output = replace(job.output, shards=None, state="empty" if unknown else job.output.state)
        jobs.append(replace(job, output=output))
    return replace(deployment, jobs=tuple(jobs))


def _rerun_by_themselves(deployment: "Deployment") -> frozenset[str]:
    """Return the jobs that start over by themselves: what their results depend on has changed, or their rows have.

    The rows have changed if the job that makes them starts over.
    """
    wanted = {job.spec.name for job in deployment.jobs if job.spec.output.on_upgrade == "rerun" and job.changed}
    return _startable(deployment) & (wanted | {job.spec.name for job in deployment.jobs if job.input.restarted})


def _with_readers(stale: Collection[str], deployment: "Deployment", jobs: Collection[str] | None) -> frozenset[str]:
    """Return jobs that start over with those that have read their rows, which start over too."""
    read = with_readers(stale, deployment.spec.jobs)
    begun = {job.spec.name for job in deployment.jobs if job.output.state in {"part", "finished"}}
    return frozenset(stale) | {name for name in read & begun if jobs is None or name in jobs}


def join_facts(
    spec: Spec,
    host: "HostFacts",
    state: Path,
    stale: Collection[str] = (),
    *,
    counting: Counting = Counting.NOT,
    elsewhere: bool = False,
    planned: Mapping[str, frozenset[str]] | None = None,
    unseen: Collection[str] = (),
    new_run: bool = False,
) -> "Deployment":
    """Join a spec with facts; `elsewhere`: those of the machine are of another one.

    `planned`, `unseen` and `new_run` are those of `probe`.
    """
    from ortdeploy.deployment.resolve import resolve  # noqa: PLC0415  brings numpy, which validate does not need
    from ortdeploy.planning.probing.fetched_files import with_fetched  # noqa: PLC0415
    from ortdeploy.planning.probing.probe import probe  # noqa: PLC0415
    from ortdeploy.planning.remembered.graph_cache import remembering_placement  # noqa: PLC0415

    spec = with_fetched(spec, state)
    facts = probe(
        spec,
        state,
        host,
        stale,
        counting=counting,
        elsewhere=elsewhere,
        planned=planned,
        unseen=unseen,
        new_run=new_run,
    )
    return resolve(spec, facts, _operators(spec), remembering_placement(host))


def _operators(spec: Spec) -> "KnownOperators":
    """Return the operators for op steps: those of ONNX, and of other domains if a manifest names one."""
    if not any(spec.op_steps()):
        from ortdeploy.deployment.op_names import NO_OPERATORS  # noqa: PLC0415  only for planning

        return NO_OPERATORS
    from ortdeploy.facts.host import EXTENSION_DOMAINS  # noqa: PLC0415
    from ortdeploy.graph.operators import Operators  # noqa: PLC0415  brings onnx
    from ortdeploy.runtime.operators import extension_operators, other_operators  # noqa: PLC0415  brings onnxruntime

    domains = {op.domain for op in spec.op_steps()}
    others = other_operators() if domains != {ONNX} else {}
    return Operators({**others, **(extension_operators() if domains.intersection(EXTENSION_DOMAINS) else {})})


def judge(
    deployment: "Deployment", state: Path, *, elsewhere: bool = False
) -> "tuple[Deployment, tuple[Diagnostic, ...]]":
    """Apply the rules; if none finds an error, run the preflight, and apply the rules that judge it.

    `elsewhere`: the facts are of another machine.
    """
    from ortdeploy.planning.preflight.compiled_models import ask_about_compiled  # noqa: PLC0415  starts a child
    from ortdeploy.planning.preflight.op_sessions import open_op_steps  # noqa: PLC0415  starts a child
    from ortdeploy.planning.preflight.openings import open_models  # noqa: PLC0415  starts a child

    spec = deployment.spec
    diagnostics = check_rules(load_rules(DEPLOYMENT_RULES), deployment, spec)
    rejected = {one.model for one in diagnostics if one.severity is Severity.ERROR and one.model is not None}
    preflight = Preflight(
        openings=open_models(deployment, rejected, state, elsewhere=elsewhere),
        compiled=ask_about_compiled(deployment, rejected, elsewhere=elsewhere),
        refused_operators=open_op_steps(deployment, elsewhere=elsewhere),
    )
    deployment = replace(deployment, preflight=preflight)
    diagnostics += check_rules(load_rules(OPENING_RULES), deployment, spec)
    if deployment.jobs and not has_errors(diagnostics):
        deployment = _preflight_jobs(deployment, state, elsewhere=elsewhere)
        diagnostics += check_rules(load_rules(PREFLIGHT_RULES), deployment, spec)
    return deployment, diagnostics


def judge_memory(deployment: "Deployment", plan: "Plan") -> tuple[Diagnostic, ...]:
    """Return what is wrong with the memory that the jobs of a plan take, as it was measured."""
    forecasts = {step.job: step.limits.forecast for step in run_jobs(plan) if step.limits.forecast is not None}
    measured = replace(deployment, preflight=replace(deployment.preflight, memory=forecasts))
    return check_rules((load_rule("over-memory-limit"),), measured, deployment.spec)


def _preflight_jobs(deployment: "Deployment", state: Path, *, elsewhere: bool) -> "Deployment":
    """Return the deployment with the outcome of its jobs' preflight; no rule may have found an error before."""
    from ortdeploy.planning.preflight.batch_sizes import try_batches  # noqa: PLC0415  only what has jobs
    from ortdeploy.planning.preflight.first_rows import look_at_rows  # noqa: PLC0415  only what has jobs
    from ortdeploy.planning.preflight.memory_estimate import forecast_memory  # noqa: PLC0415  only what has jobs

    first_rows = look_at_rows(deployment)
    rooms = {name: found.room for name, found in first_rows.items()}
    jobs = tuple(replace(job, row_room=rooms.get(job.spec.name, job.row_room)) for job in deployment.jobs)
    deployment = replace(deployment, jobs=jobs)
    preflight = replace(
        deployment.preflight,
        first_rows=first_rows,
        refused_batches=try_batches(deployment),
        memory=forecast_memory(deployment, state, elsewhere=elsewhere),
    )
    return replace(deployment, preflight=preflight)


def usable_state(spec: Spec, state_dir: str | None) -> Path | tuple[Diagnostic, ...]:
    """Return the state folder with all fetched files, or why the ledger or these files cannot be kept there."""
    try:
        state = state_folder(spec.folder, state_dir, spec.roots)
    except OrtdeployError as error:
        return (stage_diagnostic("state-outside-tree", f"{error}.", Span(path=spec.path, line=1, column=1)),)
    if not any(is_url(file.path) for file in pinned_files(spec)):
        return state
    from ortdeploy.planning.probing.fetched_files import fetch_files  # noqa: PLC0415  only for files by URL

    unfetched = tuple(
        stage_diagnostic("unfetched-file", why, spec.document.locate(file.at)) for file, why in fetch_files(spec, state)
    )
    return unfetched or state
