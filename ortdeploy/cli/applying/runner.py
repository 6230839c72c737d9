"""Runs the plans of an apply one after the other, each with its golden checks; none stops another one."""

import argparse
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from ortdeploy.cli.children.apply import run_plan
from ortdeploy.cli.command_line.manifest_options import load_options
from ortdeploy.cli.exit_codes import EXIT_BUG, EXIT_LOCKED, EXIT_OK, EXIT_PAUSED, EXIT_REJECTED
from ortdeploy.cli.os_errors import fault_of_the_machine
from ortdeploy.cli.signals import StopFlag
from ortdeploy.diagnostics import LockedError, OrtdeployError, UsageError, failure_at
from ortdeploy.events import log
from ortdeploy.jobs.ending import Ending
from ortdeploy.jobs.executor import Execution
from ortdeploy.jobs.gone_files import note_gone_files
from ortdeploy.jobs.job_report import NOT_BEGUN, unrun
from ortdeploy.ledger.ledger import now
from ortdeploy.ledger.records import output_key
from ortdeploy.plan.selection import keep_jobs, output_paths, run_jobs
from ortdeploy.plan.steps import Plan
from ortdeploy.planning.devices.kept_choices import keep_choice
from ortdeploy.planning.last_manifest import keep_text
from ortdeploy.planning.planned import Planned
from ortdeploy.planning.state_folder import state_folder
from ortdeploy.providers.secrets import masked_document
from ortdeploy.redaction import shown_arguments
from ortdeploy.results.results import JobResult, Status

if TYPE_CHECKING:
    from ortdeploy.cli.engines import Engine
    from ortdeploy.deployment.resolved import Deployment
    from ortdeploy.plan.part_table import Shard

_MORE_PLANS = 10
"""How often an apply plans again because input files change or go while it runs."""
_MORE_FOR_A_FILE = 2
"""How often it does so for one file: each of these plans may run all rows that are not committed."""
_CODES = {Status.FAILED: EXIT_REJECTED, Status.PAUSED: EXIT_PAUSED}


def with_kept_choice(plan: Plan, arguments: argparse.Namespace, since: str, *, runs: bool = True) -> Plan:
    """Keep which profile a plan is of, if any; return the plan with the time of that choice. Raises OrtdeployError."""
    if plan.choice is None:
        return plan
    state_dir = state_folder(plan.folder, arguments.state_dir, plan.roots)
    try:
        since = keep_choice(plan, plan.choice, state_dir, since, anew=getattr(arguments, "choose", False), runs=runs)
    except OSError as error:
        raise OrtdeployError(failure_at(state_dir, error)) from error
    return replace(plan, choice=replace(plan.choice, since=since))


def with_kept_choices(planned: Planned, arguments: argparse.Namespace) -> Planned:
    """Keep which profiles are about to run, before anything of them does; return the plans with the times of choices.

    Raises OrtdeployError.
    """

    def kept(plan: Plan) -> Plan:
        return with_kept_choice(plan, arguments, now(), runs=not (plan.gates and plan.steps))

    return replace(planned, plans=tuple(map(kept, planned.plans)), stand_ins=tuple(map(kept, planned.stand_ins)))


class Ended(Struct, frozen=True, kw_only=True):
    """A plan, and how its jobs ended; or the error that kept them, or the one whose output is locked, from running.

    `by_gate`: a golden check has kept them from running. `stands_in`: it is a last good version of its manifest.
    """

    plan: Plan
    results: tuple[JobResult, ...] = ()
    error: Exception | None = None
    by_gate: bool = False
    stands_in: bool = False

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


class Runner(Struct, frozen=True, kw_only=True):
    """Runs plans one after the other; none is stopped by what another one cannot do."""

    planned: Planned
    arguments: argparse.Namespace
    stopped: StopFlag
    shard: "Shard | None"
    engine: "Engine | None"
    run_id: str = field(default_factory=lambda: os.urandom(6).hex())

    def run(self) -> Iterator[Ended]:
        """Run all plans; with --last-good, run the last good version of refused manifests."""
        planned = self.planned
        deployments = [*planned.deployments, *[None] * (len(planned.plans) - len(planned.deployments))]
        for plan, deployment in zip(planned.plans, deployments, strict=True):
            yield from self._apart(plan, partial(self._run_up_to_date, plan, deployment))
        for plan in planned.stand_ins:
            yield from self._apart(plan, partial(self._run_stand_in, plan))

    def _apart(self, plan: Plan, run: Callable[[], Iterator[Ended]]) -> Iterator[Ended]:
        """Run a plan, unless a signal has come; an error is yielded, so that it stops no other plan."""
        try:
            if self.stopped():
                yield Ended(plan=plan, results=_not_begun(plan, self.arguments.state_dir))
            else:
                yield from run()
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001  a bug is raised when all plans have run
            yield Ended(plan=plan, error=error)

    def _run_up_to_date(
        self, plan: Plan, deployment: "Deployment | None", said: tuple[str | None, ...] = ()
    ) -> Iterator[Ended]:
        """Run a plan; if its input files change or go meanwhile, plan again and run that. `said`: why, until now."""
        for ended in self._run_planned(plan, deployment):
            reasons = tuple(result.reason for result in ended.results if result.overtaken)
            is_often = len(said) >= _MORE_PLANS or any(said.count(one) >= _MORE_FOR_A_FILE for one in reasons)
            again = self._planned_again(ended) if reasons and not is_often else None
            if again is None:
                yield ended
                continue
            before = {result.job: result for result in ended.results if result.status is Status.DONE}
            for one in self._run_up_to_date(*again, said + reasons):
                has_nothing = {result.job for result in one.results if result.status is Status.NOTHING_TO_DO}
                results = (before.get(each.job, each) if each.job in has_nothing else each for each in one.results)
                yield replace(one, results=tuple(results))

    def _planned_again(self, ended: Ended) -> "tuple[Plan, Deployment | None] | None":
        """Return another plan of a manifest whose files have overtaken this one; None if there is none."""
        if self.stopped() or self.shard is not None or self.engine is not None:
            return None
        from ortdeploy.cli.plans import load_or_plan  # noqa: PLC0415  loaded already, unless the plan was remembered
        from ortdeploy.manifest.loader import find_manifests  # noqa: PLC0415

        manifest = manifest_of(ended.plan)
        paths = [one for one in find_manifests(self.arguments.paths)[0] if os.path.abspath(one) == manifest]  # noqa: PTH100
        if not paths or any(step.timing.until is not None for step in run_jobs(ended.plan)):  # time would begin anew
            return None
        own = {"paths": paths, "jobs": ended.plan.jobs, "excluded": (), "new_run": False}  # the new run has begun
        arguments = argparse.Namespace(**{**vars(self.arguments), **own})
        try:
            planned = load_or_plan(arguments, in_shards=False)
        except OrtdeployError:  # which the next apply says
            return None
        for plan, deployment in zip(planned.plans, planned.deployments, strict=False):
            if document_of(planned, plan) == document_of(self.planned, ended.plan):  # else it is not what was to run
                for result in ended.results:
                    if result.overtaken:
                        log.warning("plan.overtaken", job=result.job, reason=result.reason)
                return with_kept_choice(plan, arguments, now(), runs=not (plan.gates and plan.steps)), deployment
        return None

    def _run_planned(self, plan: Plan, deployment: "Deployment | None") -> Iterator[Ended]:
        state_dir = state_folder(plan.folder, self.arguments.state_dir, plan.roots)
        is_here = self.engine is None  # each worker of an engine runs the gates itself
        refused = refused_by_gates(plan, self.arguments.state_dir, self.stopped) if plan.steps and is_here else None
        if self.stopped():
            yield Ended(plan=plan, results=_not_begun(plan, self.arguments.state_dir))
            return
        if refused is not None:
            if self.shard is None:
                note_gone_files(plan, state_dir)
            yield Ended(plan=plan, results=refused, by_gate=True)
            good = _last_good(plan, refused[0].reason or "", self.arguments) if self.arguments.last_good else ()
            for one in good:
                yield from self._run_stand_in(one)
            return
        if plan.steps and self.shard is None:
            if is_here and plan.gates and plan.choice is not None:  # whose checks have passed
                with_kept_choice(plan, self.arguments, plan.choice.since or now())
            keep_manifest(self.planned, plan, state_dir, self.run_id)
        well = True
        for ended in self._run_whole(plan, state_dir, shard=self.shard, engine=self.engine):
            well = well and ended.error is None and all(one.status is not Status.FAILED for one in ended.results)
            yield ended
        if self.arguments.last_good and deployment is not None and well:
            from ortdeploy.planning.versions.last_good import keep_good  # noqa: PLC0415  only if asked for

            keep_good(deployment, state_dir, now())

    def _run_stand_in(self, plan: Plan) -> Iterator[Ended]:
        for ended in self._run_whole(plan, state_folder(plan.folder, self.arguments.state_dir, plan.roots)):
            yield replace(ended, stands_in=True)

    def _run_whole(
        self, plan: Plan, state_dir: Path, *, shard: "Shard | None" = None, engine: "Engine | None" = None
    ) -> Iterator[Ended]:
        """Run a plan without the jobs whose outputs are locked; no job has run before all locks are taken."""
        while True:
            try:
                results = _run_one(
                    plan, state_dir, self.run_id, self.arguments, self.stopped, shard=shard, engine=engine
                )
            except LockedError as error:
                others = _without_output(plan, state_dir, error.output)
                yield Ended(plan=plan, error=error)
                if others is None:
                    return
                plan = others
            else:
                yield Ended(plan=plan, results=results)
                return


def _without_output(plan: Plan, state_dir: Path, output: str | None) -> Plan | None:
    """Return a plan without the job that writes an output; None if no other job is left."""
    paths = output_paths(plan)
    others = [job for job, path in paths.items() if output_key(Path(plan.folder) / path, state_dir) != output]
    return keep_jobs(plan, others) if 0 < len(others) < len(paths) else None


def _not_begun(plan: Plan, state_dir: str | None) -> tuple[JobResult, ...]:
    """Return the results of a plan that did not begin because a signal came."""
    return (*Execution.finished(plan), *_unrun(plan, state_dir, NOT_BEGUN))


def _unrun(plan: Plan, state_dir: str | None, ending: Ending) -> tuple[JobResult, ...]:
    return unrun(plan, state_folder(plan.folder, state_dir, plan.roots), ending)


def keep_manifest(planned: Planned, plan: Plan, state_dir: Path, run_id: str) -> None:
    """Keep the manifest's text, if the plan was made from one."""
    document = document_of(planned, plan)
    if document is not None:
        keep_text(document, plan, state_dir, run_id)


def document_of(planned: Planned, plan: Plan) -> Any:
    """Return the manifest that a plan was made from, without secrets; None if it was made from none."""
    spec = next((one for one in planned.specs if os.path.abspath(one.path) == manifest_of(plan)), None)  # noqa: PTH100
    return planned.documents.get(plan.manifest) if spec is None else masked_document(spec.document.data)


def manifest_of(plan: Plan) -> str:
    """Return the full path of the manifest that a plan was made from."""
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
        manifest_of(plan),
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
    from ortdeploy.cli.commands.check import UNATTENDED, run_checks  # noqa: PLC0415

    results = list(run_checks(plan.gates, state_dir, plan.roots, stopped, seconds=UNATTENDED))
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
    return _unrun(plan, state_dir, Ending(status=Status.FAILED, reason=reason))
