"""How the apply of each manifest ended: for the status documents, for `status`, and for whom `on_end:` names."""

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ortdeploy.cli.applying.runner import Ended, manifest_of
from ortdeploy.cli.output.self_report import Outcome
from ortdeploy.diagnostics import Diagnostic, OrtdeployError, errors_in
from ortdeploy.ledger.ledger import Ledger, now
from ortdeploy.ledger.opening import read_ledger
from ortdeploy.plan.selection import run_jobs
from ortdeploy.planning.planned import Planned
from ortdeploy.planning.refused_applies import forget_refusal, note_refusal, refused_applies
from ortdeploy.planning.state_folder import state_folder
from ortdeploy.results.results import Status

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec
_OF_MANIFESTS = (".yaml", ".yml")


def tell_others(planned: Planned, outcomes: Sequence[Outcome], ended: Sequence[Ended], state_dir: str | None) -> None:
    """Call what `on_end:` of each manifest names, unless its apply was interrupted."""
    of_manifests = {one.manifest: one for one in outcomes}
    for spec in planned.specs:
        outcome = of_manifests.get(os.path.abspath(spec.path))  # noqa: PTH100  keeps links
        if spec.on_end is None or outcome is None:
            continue
        from ortdeploy.cli.output import on_end  # noqa: PLC0415  only where somebody is told

        own = [one for one in ended if manifest_of(one.plan) == outcome.manifest]
        errors = [one for one in errors_in(planned.diagnostics) if one.span.path == spec.path]
        refusals = [f"{one.rule}: {one.summary}. {one.detail}" for one in errors]
        refusals += [f"{one.why or one.error}." for one in own if one.error is not None and not one.is_locked]
        if Status.INTERRUPTED in {result.status for result in outcome.results}:
            continue
        with suppress(OrtdeployError):  # of the state folder, which is among what the manifest is refused for
            folder = state_folder(spec.folder, state_dir, spec.roots)
            jobs = [(one.plan, one.results) for one in own]
            on_end.tell(spec, on_end.message(spec, outcome.state, refusals, jobs), folder)


def note_refusals(planned: Planned, ended: Sequence[Ended], arguments: argparse.Namespace) -> None:
    """Note for `status` which manifests were refused; in whose place a last good version ran, that was noted before."""
    reasons = _reasons_of_refusals(planned, ended, arguments)
    stand_ins = {*map(manifest_of, planned.stand_ins), *(manifest_of(one.plan) for one in ended if one.stands_in)}
    roots = tuple(str(Path(root).absolute()) for root in arguments.roots)
    for manifest in {*reasons, *map(manifest_of, planned.plans)} - stand_ins:
        if manifest not in reasons and not refused_applies((manifest,), arguments.state_dir):
            continue
        with suppress(OrtdeployError):  # a state folder that leads elsewhere
            state_dir = state_folder(str(Path(manifest).parent), arguments.state_dir, roots)
            if manifest in reasons:
                note_refusal(manifest, state_dir, reasons[manifest], now())
            else:
                forget_refusal(manifest, state_dir)


def _reasons_of_refusals(planned: Planned, ended: Sequence[Ended], arguments: argparse.Namespace) -> dict[str, str]:
    """Return why manifests were refused, by their full paths; one whose output is locked is not."""
    errors = _errors_of_refusals(planned, arguments)
    reasons = {path: f"{one.rule}: {one.detail}" for path, one in errors.items()}
    for one in ended:
        refused = _refused(one)
        reason = (refused or _unrecorded_failure(one, arguments)) if one.why is None or one.is_locked else one.why
        if reason is not None:
            reasons.setdefault(manifest_of(one.plan), reason)
    return reasons


def _errors_of_refusals(planned: Planned, arguments: argparse.Namespace) -> dict[str, Diagnostic]:
    """Return the first error of each manifest without a plan, by their full paths."""
    errors = errors_in(planned.diagnostics)
    named = dict.fromkeys(map(os.path.abspath, [*_manifests_of(arguments), *_specs_of(planned)])) if errors else ()
    accepted = set(map(manifest_of, planned.plans))
    found: dict[str, Diagnostic] = {}
    for path in named:
        own = [one for one in errors if os.path.abspath(one.span.path) == path or len(named) == 1]  # noqa: PTH100  keeps links
        if own and path not in accepted:
            found[path] = own[0]
    return found


def _refused(ended: Ended) -> str | None:
    """Return why the jobs of a plan are refused here: by a golden check, or by the machine."""
    return next((each.reason for each in ended.results if ended.by_gate or each.refused), None)


def outcomes_of(planned: Planned, ended: Sequence[Ended], arguments: argparse.Namespace) -> Iterator[Outcome]:
    """Yield how the apply of each manifest ended, unless another one holds what it writes, for the status documents."""
    errors, specs = _errors_of_refusals(planned, arguments), _specs_of(planned)
    plans = {manifest_of(plan): plan for plan in (*planned.stand_ins, *planned.plans)}
    for manifest in dict.fromkeys((*plans, *errors)):
        own = [one for one in ended if manifest_of(one.plan) == manifest]
        if manifest not in errors and own and all(one.is_locked for one in own):
            continue
        plan = plans.get(manifest)
        outcome = Outcome(
            manifest=manifest,
            state="current",
            plan=plan,
            spec=specs.get(manifest),
            document=None if plan is None else planned.documents.get(plan.manifest),
            results=tuple(result for one in own for result in one.results),
        )
        yield _with_state(outcome, own, errors.get(manifest))


def _with_state(outcome: Outcome, ended: Sequence[Ended], error: Diagnostic | None) -> Outcome:
    """Return an outcome with the state that follows from it."""
    statuses = {result.status for result in outcome.results}
    if error is not None:
        return replace(outcome, state="refused", diagnostic=error, reached="described")
    if any(one.by_gate for one in ended):
        return replace(outcome, state="refused", summary="A golden check did not pass", reached="planned")
    if any(map(_refused, ended)):
        return replace(outcome, state="refused", summary="A job cannot run on this machine", reached="checked")
    if Status.FAILED in statuses or any(one.error is not None and not one.is_locked for one in ended):
        return replace(outcome, state="failed")
    return replace(outcome, state="paused") if statuses & {Status.PAUSED, Status.INTERRUPTED} else outcome


def about_to_run(planned: Planned) -> Iterator[Outcome]:
    """Yield the manifests of which something is about to run."""
    specs = _specs_of(planned)
    for plan in planned.plans:
        if plan.steps:
            manifest = manifest_of(plan)
            document = planned.documents.get(plan.manifest)
            yield Outcome(manifest=manifest, state="running", plan=plan, spec=specs.get(manifest), document=document)


def _specs_of(planned: Planned) -> "dict[str, Spec]":
    return {os.path.abspath(spec.path): spec for spec in planned.specs}  # noqa: PTH100  keeps links


def _unrecorded_failure(ended: Ended, arguments: argparse.Namespace) -> str | None:
    """Return why a job failed of which the ledger does not know it, because it failed before it began."""
    failed = {one.job: one.reason for one in ended.results if one.status is Status.FAILED}
    if not failed or arguments.shard is not None:
        return None
    plan = ended.plan
    with suppress(OrtdeployError), read_ledger(state_folder(plan.folder, arguments.state_dir, plan.roots)) as ledger:
        for step in run_jobs(plan):
            if step.job in failed and not _is_recorded(ledger, Path(plan.folder) / step.output.path, failed[step.job]):
                return f"job {step.job}: {failed[step.job]}"
    return None


def _is_recorded(ledger: Ledger | None, output: Path, reason: str | None) -> bool:
    """Return whether a ledger has that the last run of an output failed, and why."""
    record = None if ledger is None else ledger.output(ledger.key(output))
    return record is not None and record.status == Status.FAILED and record.reason == reason


def _manifests_of(arguments: argparse.Namespace) -> list[str]:
    """Return the manifests that a command line names; a saved plan is none."""
    from ortdeploy.manifest.loader import find_manifests  # noqa: PLC0415  loaded already where one was refused

    return [one for one in find_manifests(arguments.paths)[0] if one.endswith(_OF_MANIFESTS)]
