"""Plans the golden checks of models, and looks for leaks."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ortdeploy.diagnostics import Diagnostic, UsageError, did_you_mean, has_errors, sort_diagnostics
from ortdeploy.manifest.document import stage_diagnostic
from ortdeploy.manifest.loader import LoadOptions
from ortdeploy.manifest.spec import Spec
from ortdeploy.planning.devices.variants import on_this_machine
from ortdeploy.planning.joining import join_facts, probe_host, usable_state
from ortdeploy.planning.judging import judge
from ortdeploy.planning.validation import validate

if TYPE_CHECKING:
    from ortdeploy.plan.steps import PlannedCheck


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
    checked = {model for model, _ in spec.checks()}
    wanted = (model for model in spec.models if only_model in {None, model.name})
    models = tuple(model for model in wanted if model.name in checked or not with_checks)
    adapters = tuple(adapter for adapter in spec.adapters if adapter.model in {model.name for model in models})
    return replace(spec, jobs=(), pipelines=(), models=models, adapters=adapters)


def _nothing_to_check(spec: Spec, only_model: str | None) -> tuple[Diagnostic, ...]:
    """Report that no wanted model has a check, unless the manifest says so for each of them."""
    models = [model for model in spec.models if only_model in {None, model.name}]
    checked = {model for model, _ in spec.checks()}
    if checked.intersection(model.name for model in models) or all(model.unchecked for model in models):
        return ()
    first = next(model for model in models if not model.unchecked)
    which = f'Model "{first.name}" has no' if len(models) == 1 else "None of the models has"
    detail = (
        f"{which} golden inputs and outputs, so nothing would be checked. Name their folders with checks: [FOLDER]; "
        "ortdeploy check --record writes the outputs. Or say with checks: [] that there are none."
    )
    return (replace(stage_diagnostic("nothing-to-check", detail, spec.locate(first.at, key=True)), model=first.name),)
