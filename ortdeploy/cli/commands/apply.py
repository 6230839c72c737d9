"""`ortdeploy apply`: plan a manifest and run the plan; a saved plan is planned again and must be the same."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np  # noqa: F401  here and not deeper: where Python's stack is about to grow, each call maps a new piece
from msgspec import Struct, field
from msgspec.structs import replace

from ortdeploy.cli.children.apply import run_plan
from ortdeploy.cli.command_line.manifest_options import load_options
from ortdeploy.cli.commands.shared import (
    planning,
    result_from_here,
    start_logging,
    terminal_width,
    use_color,
    write_diagnostics,
    write_plan,
)
from ortdeploy.cli.exit_codes import (
    EXIT_BUG,
    EXIT_LOCKED,
    EXIT_OK,
    EXIT_PAUSED,
    EXIT_REJECTED,
    EXIT_USAGE,
    worst_of,
)
from ortdeploy.cli.os_errors import fault_of_the_machine
from ortdeploy.cli.output.self_report import Outcome, SelfReport
from ortdeploy.cli.output.streams import overheard
from ortdeploy.cli.signals import StopFlag
from ortdeploy.diagnostics import Diagnostic, LockedError, OrtdeployError, Severity, UsageError, failure_at, has_errors
from ortdeploy.events import log
from ortdeploy.fleet.this_device import files_of_commit
from ortdeploy.jobs.executor import Execution
from ortdeploy.jobs.gone_files import note_gone_files
from ortdeploy.jobs.job_report import not_begun
from ortdeploy.ledger.ledger import Ledger, now
from ortdeploy.ledger.opening import read_ledger
from ortdeploy.ledger.records import output_key
from ortdeploy.plan.selection import keep_jobs, run_jobs
from ortdeploy.plan.steps import Plan, RunJob
from ortdeploy.planning.devices.kept_choices import keep_choice
from ortdeploy.planning.last_manifest import keep_text
from ortdeploy.planning.planned import Planned
from ortdeploy.planning.refused_applies import forget_refusal, note_refusal, refused_applies
from ortdeploy.planning.remembered.nothing_to_do import AnswerMemo
from ortdeploy.planning.remembered.plan_cache import KIND, recall_plan
from ortdeploy.planning.state_folder import state_folder
from ortdeploy.providers.secrets import masked_document
from ortdeploy.redaction import shown_arguments, without_secrets
from ortdeploy.results.results import JobResult, Status
from ortdeploy.state import memo
from ortdeploy.terminal_text import safe
from ortdeploy.views import text

if TYPE_CHECKING:
    from ortdeploy.cli.engines import Engine
    from ortdeploy.deployment.resolved import Deployment
    from ortdeploy.manifest.spec import Spec
    from ortdeploy.plan.part_table import Shard
    from ortdeploy.planning.remembered.keep_checked import ToKeep

_BAD = (Status.FAILED, Status.INTERRUPTED)
_OF_MANIFESTS = (".yaml", ".yml")
_CODES = {Status.FAILED: EXIT_REJECTED, Status.PAUSED: EXIT_PAUSED}


def run(arguments: argparse.Namespace) -> int:
    """Plan, show the plan, run it, and show how each job ended; if there was nothing to do, remember that.

    A manifest that is refused does not stop the others.
    """
    recollection = AnswerMemo(arguments)
    with overheard() as said:
        applied = _run(arguments, recollection)
    planned, to_keep = applied.planned, applied.to_keep
    if applied.code == EXIT_OK and planned.deployments:
        from ortdeploy.planning.remembered.dependencies import rests_on  # noqa: PLC0415

        with suppress(OrtdeployError):  # a state folder that has come to lead elsewhere keeps nothing
            state_dir = state_folder(planned.plans[0].folder, arguments.state_dir, planned.plans[0].roots)
            memo.put_waiting(state_dir)
            if to_keep is not None:
                to_keep.keep()
            if applied.documents is not None and not any(plan.steps for plan in planned.plans):
                rested_on = rests_on(planned.deployments, arguments.paths, state_dir)
                if rested_on is not None:  # and what is said of this device rests on the commit
                    commit = files_of_commit(Path(planned.plans[0].folder))
                    rested_on = {**rested_on, "files": sorted({*rested_on["files"], *commit})}
                recollection.keep(rested_on, str(state_dir), said.text(), applied.documents)
    return applied.code


class _Applied(Struct, frozen=True, kw_only=True):
    """What was planned, the exit code, what is to be remembered, and the files that say how the device is.

    `documents` are None if one could not be written.
    """

    planned: Planned
    code: int
    to_keep: "ToKeep | None"
    documents: list[str] | None


def _run(arguments: argparse.Namespace, recollection: AnswerMemo) -> _Applied:
    with ExitStack() as stack:
        kept = start_logging(arguments, stack)
        engine = _engine_of(arguments)
        shard = _shard_of(arguments)
        in_shards = shard is not None or engine is not None
        planned, to_keep = _recall_or_plan(arguments, recollection, in_shards=in_shards)
        rejected = has_errors(planned.diagnostics)
        _show(planned, arguments)
        ended: list[_Ended] = []
        stopped = StopFlag()
        if kept is not None and any(plan.steps for plan in planned.plans):
            kept.keep_in(state_folder(planned.plans[0].folder, arguments.state_dir, planned.plans[0].roots))
        reports = arguments.command == "apply" and not in_shards  # the workers of a cluster are no devices
        said = SelfReport(arguments)
        if reports:
            said.write(_begun(planned))
        if planned.plans or planned.stand_ins:
            with stopped.installed():
                runner = _Runner(planned=planned, arguments=arguments, stopped=stopped, shard=shard, engine=engine)
                ended = list(runner.run())
        results = tuple(result for one in ended for result in one.results)
        documents: list[str] | None = []
        if arguments.command == "apply":
            outcomes = tuple(_outcomes(planned, ended, arguments))
            _tell_others(planned, outcomes, ended, arguments.state_dir)
            _note_refusals(planned, ended, arguments)
            documents = said.write(outcomes if reports else ())
    if results or all(one.error is None for one in ended):
        _tell(planned, ended, arguments)
    _complain(ended)
    _forget_failed(planned, ended, recollection)
    bug = next((one.error for one in ended if one.error is not None and one.why is None), None)
    if bug is not None:
        raise bug
    codes = [code for one in ended for code in one.codes(stopped)]
    if rejected:
        codes.append(EXIT_REJECTED)
    lasting = all(one.error is None for one in ended) and all(one.refused for one in results if one.status in _BAD)
    if shard is not None and lasting:
        codes = [EXIT_USAGE if code == EXIT_REJECTED else code for code in codes]  # running it again changes nothing
    code = worst_of(codes)
    return _Applied(planned=planned, code=code, to_keep=to_keep if code == EXIT_OK else None, documents=documents)


def _show(planned: Planned, arguments: argparse.Namespace) -> None:
    """Print what was found, and the plans."""
    if arguments.format != "json":
        write_diagnostics(planned.diagnostics, arguments)
    is_shown = planned.plans or not has_errors(planned.diagnostics)
    if arguments.format == "text" and is_shown and not arguments.quiet:
        write_plan(planned.plans, arguments)
        sys.stdout.flush()


def _tell(planned: Planned, ended: "Sequence[_Ended]", arguments: argparse.Namespace) -> None:
    """Print how the jobs ended: a table on a terminal, else a line for each job; with -q, only what went wrong."""
    results = [result for one in ended for result in one.results]
    if arguments.format == "json":
        from ortdeploy.views import json  # noqa: PLC0415  only if asked for

        sys.stdout.write(json.render_apply(planned.diagnostics, planned.plans, results))
        return
    if arguments.format == "sarif":
        return
    here = [result_from_here(one.plan, result) for one in ended for result in one.results]
    told = [one for one in here if not arguments.quiet or one.status in _BAD]
    width = terminal_width(sys.stdout)
    if width is not None:
        from ortdeploy.views.summary_table import render_table  # noqa: PLC0415  only on a terminal

        before = "" if arguments.quiet or not told else "\n"  # the plan stands above it
        sys.stdout.write(before + render_table(told, color=use_color(arguments), width=width))
    else:
        sys.stdout.write(text.render_results(told, color=use_color(arguments)))


def _shard_of(arguments: argparse.Namespace) -> "Shard | None":
    said = getattr(arguments, "shard", None)
    if said is None:
        return None
    from ortdeploy.cli.command_line.shards import parse_shard  # noqa: PLC0415  only if asked for

    return parse_shard(said, os.environ)


def _engine_of(arguments: argparse.Namespace) -> "Engine | None":
    if getattr(arguments, "engine", None) is None and getattr(arguments, "workers", None) is None:
        return None
    from ortdeploy.cli.engines import engine_of  # noqa: PLC0415  only for a cluster

    return engine_of(arguments)


def _recall_or_plan(
    arguments: argparse.Namespace, recollection: AnswerMemo, *, in_shards: bool
) -> "tuple[Planned, ToKeep | None]":
    """Return the plan, and what is to be remembered of it. If it is remembered already, look at the data alone."""
    if arguments.command != "apply" or in_shards or arguments.last_good or arguments.root is not None:
        planned = _plan(arguments, in_shards=in_shards)
        return planned if in_shards else _with_kept_choices(planned, arguments), None  # workers take the plan's
    recalled = recall_plan(recollection, arguments.paths, arguments.roots, arguments.state_dir)
    if recalled is not None:
        return _with_kept_choices(recalled, arguments), None
    planned = _with_kept_choices(_plan(arguments, in_shards=False), arguments)
    if not planned.deployments or not any(plan.steps for plan in planned.plans):
        return planned, None
    from ortdeploy.planning.remembered.keep_checked import ToKeep  # noqa: PLC0415  only if it was planned

    with suppress(OrtdeployError):
        state_dir = state_folder(planned.plans[0].folder, arguments.state_dir, planned.plans[0].roots)
        return planned, ToKeep(recollection, planned, arguments.paths, state_dir)
    return planned, None


def _with_kept_choices(planned: Planned, arguments: argparse.Namespace) -> Planned:
    """Keep which profiles are about to run, before anything of them does; return the plans with the times of choices.

    Raises OrtdeployError.
    """

    def kept(plan: Plan) -> Plan:
        return _with_kept_choice(plan, arguments, now(), runs=not (plan.gates and plan.steps))

    return replace(planned, plans=tuple(map(kept, planned.plans)), stand_ins=tuple(map(kept, planned.stand_ins)))


def _with_kept_choice(plan: Plan, arguments: argparse.Namespace, since: str, *, runs: bool = True) -> Plan:
    if plan.choice is None:
        return plan
    state_dir = state_folder(plan.folder, arguments.state_dir, plan.roots)
    try:
        since = keep_choice(plan, plan.choice, state_dir, since, anew=getattr(arguments, "choose", False), runs=runs)
    except OSError as error:
        raise OrtdeployError(failure_at(state_dir, error)) from error
    return replace(plan, choice=replace(plan.choice, since=since))


def _plan(arguments: argparse.Namespace, *, in_shards: bool) -> Planned:
    from ortdeploy.cli.plans import load_or_plan  # noqa: PLC0415  not where the plan is remembered

    computes = getattr(arguments, "engine", None) is None  # else its workers do
    with planning(arguments):
        return load_or_plan(arguments, in_shards=in_shards, computes=computes)


class _Ended(Struct, frozen=True, kw_only=True):
    """A plan, and how its jobs ended; or the error that kept them, or the one whose output is locked, from running.

    `by_gate`: a golden check has kept them from running.
    """

    plan: Plan
    results: tuple[JobResult, ...] = ()
    error: Exception | None = None
    by_gate: bool = False

    @property
    def is_locked(self) -> bool:
        """Whether a live run holds what the plan writes, which the next apply may find free."""
        return isinstance(self.error, LockedError)

    @property
    def has_failed(self) -> bool:
        """Whether the plan, or one of its jobs, could not be run to its end."""
        refused = self.error is not None and not self.is_locked
        return refused or any(one.status is Status.FAILED for one in self.results)

    @property
    def why(self) -> str | None:
        """What the error is; None if there is none, or if it is a bug of ours."""
        if self.error is None or isinstance(self.error, OrtdeployError):
            return None if self.error is None else f"{self.error}"
        return fault_of_the_machine(self.error)

    def codes(self, stopped: StopFlag) -> Iterator[int]:
        """Yield the exit codes of what has happened."""
        if self.error is not None:
            yield EXIT_LOCKED if self.is_locked else EXIT_BUG if self.why is None else EXIT_REJECTED
        for result in self.results:
            if result.status is Status.INTERRUPTED:
                yield stopped.exit_code
            else:
                yield _CODES.get(result.status, EXIT_OK)


class _Runner(Struct, frozen=True, kw_only=True):
    """Runs plans one after the other; none is stopped by what another one cannot do."""

    planned: Planned
    arguments: argparse.Namespace
    stopped: StopFlag
    shard: "Shard | None"
    engine: "Engine | None"
    run_id: str = field(default_factory=lambda: os.urandom(6).hex())

    def run(self) -> Iterator[_Ended]:
        """Run all plans; with --last-good, run the last good version of refused manifests."""
        planned = self.planned
        deployments = [*planned.deployments, *[None] * (len(planned.plans) - len(planned.deployments))]
        for plan, deployment in zip(planned.plans, deployments, strict=True):
            yield from self._apart(plan, partial(self._run_planned, plan, deployment))
        for plan in planned.stand_ins:
            yield from self._apart(plan, partial(self._run_stand_in, plan))

    def _apart(self, plan: Plan, run: Callable[[], Iterator[_Ended]]) -> Iterator[_Ended]:
        """Run a plan, unless a signal has come; an error is yielded, so that it stops no other plan."""
        if self.stopped():
            yield _Ended(plan=plan, results=_not_begun(plan))
            return
        try:
            yield from run()
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001  a bug is raised when all plans have run
            yield _Ended(plan=plan, error=error)

    def _run_planned(self, plan: Plan, deployment: "Deployment | None") -> Iterator[_Ended]:
        state_dir = state_folder(plan.folder, self.arguments.state_dir, plan.roots)
        is_here = self.engine is None  # each worker of an engine runs the gates itself
        refused = refused_by_gates(plan, self.arguments.state_dir, self.stopped) if plan.steps and is_here else None
        if self.stopped():
            yield _Ended(plan=plan, results=_not_begun(plan))
            return
        if refused is not None:
            if self.shard is None:
                note_gone_files(plan, state_dir)
            yield _Ended(plan=plan, results=refused, by_gate=True)
            good = _last_good(plan, refused[0].reason or "", self.arguments) if self.arguments.last_good else ()
            for one in good:
                yield from self._run_stand_in(one)
            return
        if plan.steps and self.shard is None and self.engine is None:
            if plan.gates and plan.choice is not None:  # whose checks have passed
                _with_kept_choice(plan, self.arguments, plan.choice.since or now())
            _keep_text(self.planned, plan, state_dir, self.run_id)
        well = True
        for ended in self._run_whole(plan, state_dir, shard=self.shard, engine=self.engine):
            well = well and ended.error is None and all(one.status is not Status.FAILED for one in ended.results)
            yield ended
        if self.arguments.last_good and deployment is not None and well:
            from ortdeploy.planning.versions.last_good import keep_good  # noqa: PLC0415  only if asked for

            keep_good(deployment, state_dir, now())

    def _run_stand_in(self, plan: Plan) -> Iterator[_Ended]:
        return self._run_whole(plan, state_folder(plan.folder, self.arguments.state_dir, plan.roots))

    def _run_whole(
        self, plan: Plan, state_dir: Path, *, shard: "Shard | None" = None, engine: "Engine | None" = None
    ) -> Iterator[_Ended]:
        """Run a plan without the jobs whose outputs are locked; no job has run before all locks are taken."""
        while True:
            try:
                results = _run_one(
                    plan, state_dir, self.run_id, self.arguments, self.stopped, shard=shard, engine=engine
                )
            except LockedError as error:
                others = _without_output(plan, state_dir, error.output)
                yield _Ended(plan=plan, error=error)
                if others is None:
                    return
                plan = others
            else:
                yield _Ended(plan=plan, results=results)
                return


def _without_output(plan: Plan, state_dir: Path, output: str | None) -> Plan | None:
    """Return a plan without the job that writes an output; None if no other job is left."""
    paths = {step.job: step.output.path for step in run_jobs(plan)} | {one.job: one.path for one in plan.finished}
    others = [job for job, path in paths.items() if output_key(Path(plan.folder) / path, state_dir) != output]
    return keep_jobs(plan, others) if 0 < len(others) < len(paths) else None


def _not_begun(plan: Plan) -> tuple[JobResult, ...]:
    """Return the results of a plan that did not begin because a signal came."""
    return (*Execution.finished(plan), *map(not_begun, run_jobs(plan)))


def _complain(ended: Sequence[_Ended]) -> None:
    """Say which errors kept plans or jobs from running; name the manifest if there are several."""
    is_alone = len({one.plan.manifest for one in ended}) == 1
    for one in ended:
        if one.why is not None:
            which = "" if is_alone else f"{one.plan.manifest}: "
            sys.stderr.write(safe(without_secrets(f"ortdeploy: {which}{one.why}.\n")))


def _keep_text(planned: Planned, plan: Plan, state_dir: Path, run_id: str) -> None:
    """Keep the manifest's text, if the plan was made from one."""
    document = planned.documents.get(plan.manifest)
    spec = next((one for one in planned.specs if os.path.abspath(one.path) == _manifest_of(plan)), None)  # noqa: PTH100
    if spec is not None:
        document = masked_document(spec.document.data)
    if document is not None:
        keep_text(document, plan, state_dir, run_id)


def _forget_failed(planned: Planned, ended: Sequence[_Ended], recollection: AnswerMemo) -> None:
    """Let a remembered plan that has failed be made again: a broken device shows in nothing that is compared."""
    if planned.documents and any(one.has_failed for one in ended):
        recollection.forget(KIND)


def _tell_others(planned: Planned, outcomes: Sequence[Outcome], ended: Sequence[_Ended], state_dir: str | None) -> None:
    """Call what `on_end:` of each manifest names, unless its apply was interrupted."""
    of_manifests = {one.manifest: one for one in outcomes}
    for spec in planned.specs:
        outcome = of_manifests.get(os.path.abspath(spec.path))  # noqa: PTH100  keeps links
        if spec.on_end is None or outcome is None:
            continue
        from ortdeploy.cli.output import on_end  # noqa: PLC0415  only where somebody is told

        own = [one for one in ended if _manifest_of(one.plan) == outcome.manifest]
        errors = [one for one in planned.diagnostics if one.severity is Severity.ERROR and one.span.path == spec.path]
        refusals = [f"{one.rule}: {one.summary}. {one.detail}" for one in errors]
        refusals += [f"{one.why or one.error}." for one in own if one.error is not None and not one.is_locked]
        if Status.INTERRUPTED in {result.status for result in outcome.results}:
            continue
        with suppress(OrtdeployError):  # of the state folder, which is among what the manifest is refused for
            folder = state_folder(spec.folder, state_dir, spec.roots)
            jobs = [(one.plan, one.results) for one in own]
            on_end.tell(spec, on_end.message(spec, outcome.state, refusals, jobs), folder)


def _note_refusals(planned: Planned, ended: Sequence[_Ended], arguments: argparse.Namespace) -> None:
    """Note for `status` which manifests were refused, unless a last good version ran in their place."""
    reasons = _reasons_of_refusals(planned, ended, arguments)
    roots = tuple(str(Path(root).absolute()) for root in arguments.roots)
    for manifest in {*reasons, *(_manifest_of(plan) for plan in (*planned.plans, *planned.stand_ins))}:
        if manifest not in reasons and not refused_applies((manifest,), arguments.state_dir):
            continue
        with suppress(OrtdeployError):  # a state folder that leads elsewhere
            state_dir = state_folder(str(Path(manifest).parent), arguments.state_dir, roots)
            if manifest in reasons:
                note_refusal(manifest, state_dir, reasons[manifest], now())
            else:
                forget_refusal(manifest, state_dir)


def _reasons_of_refusals(planned: Planned, ended: Sequence[_Ended], arguments: argparse.Namespace) -> dict[str, str]:
    """Return why manifests were refused, by their full paths; one whose output is locked is not."""
    stand_ins = set(map(_manifest_of, planned.stand_ins))
    errors = _errors_of_refusals(planned, arguments)
    reasons = {path: f"{one.rule}: {one.detail}" for path, one in errors.items() if path not in stand_ins}
    for one in ended:
        refused = _refused(one)
        reason = (refused or _unrecorded_failure(one, arguments)) if one.why is None or one.is_locked else one.why
        if reason is not None:
            reasons.setdefault(_manifest_of(one.plan), reason)
    return reasons


def _errors_of_refusals(planned: Planned, arguments: argparse.Namespace) -> dict[str, Diagnostic]:
    """Return the first error of each manifest without a plan, by their full paths."""
    errors = [one for one in planned.diagnostics if one.severity is Severity.ERROR]
    named = dict.fromkeys(map(os.path.abspath, [*_manifests_of(arguments), *_specs_of(planned)])) if errors else ()
    accepted = set(map(_manifest_of, planned.plans))
    found: dict[str, Diagnostic] = {}
    for path in named:
        own = [one for one in errors if os.path.abspath(one.span.path) == path or len(named) == 1]  # noqa: PTH100  keeps links
        if own and path not in accepted:
            found[path] = own[0]
    return found


def _refused(ended: _Ended) -> str | None:
    """Return why the jobs of a plan are refused here: by a golden check, or by the machine."""
    return next((each.reason for each in ended.results if ended.by_gate or each.refused), None)


def _outcomes(planned: Planned, ended: Sequence[_Ended], arguments: argparse.Namespace) -> Iterator[Outcome]:
    """Yield how the apply of each manifest ended, unless another one holds what it writes, for the status documents."""
    errors, specs = _errors_of_refusals(planned, arguments), _specs_of(planned)
    plans = {_manifest_of(plan): plan for plan in (*planned.stand_ins, *planned.plans)}
    for manifest in dict.fromkeys((*plans, *errors)):
        own = [one for one in ended if _manifest_of(one.plan) == manifest]
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


def _with_state(outcome: Outcome, ended: Sequence[_Ended], error: Diagnostic | None) -> Outcome:
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


def _begun(planned: Planned) -> Iterator[Outcome]:
    """Yield the manifests of which something is about to run."""
    specs = _specs_of(planned)
    for plan in planned.plans:
        if plan.steps:
            manifest = _manifest_of(plan)
            document = planned.documents.get(plan.manifest)
            yield Outcome(manifest=manifest, state="running", plan=plan, spec=specs.get(manifest), document=document)


def _specs_of(planned: Planned) -> "dict[str, Spec]":
    return {os.path.abspath(spec.path): spec for spec in planned.specs}  # noqa: PTH100  keeps links


def _unrecorded_failure(ended: _Ended, arguments: argparse.Namespace) -> str | None:
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


def _manifest_of(plan: Plan) -> str:
    return str(Path(plan.folder) / Path(plan.manifest).name)


def _run_one(
    plan: Plan,
    state_dir: Path,
    run_id: str,
    arguments: argparse.Namespace,
    stopped: StopFlag,
    *,
    shard: "Shard | None" = None,
    engine: "Engine | None" = None,
) -> tuple[JobResult, ...]:
    taken = getattr(arguments, "taken", None)
    plan = replace(plan, arguments=shown_arguments(arguments.words), bundle=None if taken is None else taken.bundle)
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
    from ortdeploy.planning.versions.last_good import plan_last_good  # noqa: PLC0415  only where something is refused

    return plan_last_good(
        _manifest_of(plan),
        load_options(arguments),
        reason,
        state_dir=arguments.state_dir,
        now=now(),
        jobs=arguments.jobs,
        excluded=arguments.excluded,
    ).plans


def refused_by_gates(
    plan: Plan, state_dir: str | None, stopped: StopFlag | None = None
) -> tuple[JobResult, ...] | None:
    """Run the golden checks that gate a plan; return its jobs as failed if one does not pass."""
    if not plan.gates:
        return None
    from ortdeploy.checks.run import PASSED  # noqa: PLC0415  only for gates
    from ortdeploy.cli.commands.check import run_checks  # noqa: PLC0415

    results = list(run_checks(plan.gates, state_dir, plan.roots, stopped))
    for result in results:
        log.info(
            "check.finished",
            model=result.model,
            session=result.session,
            check=result.check,
            status=result.status,
            **({"not_proven": result.not_proven} if result.not_proven else {}),
        )
    bad = next((result for result in results if result.status != PASSED), None)
    if bad is None:
        return None
    reason = f"golden check {bad.check} of model {bad.model} on session {bad.session} {bad.status}: {bad.message}"
    return tuple(
        JobResult(job=step.job, status=Status.FAILED, output=step.output.shown, reason=reason)
        for step in plan.steps
        if isinstance(step, RunJob)
    )
