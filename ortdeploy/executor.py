"""Does what a plan's steps say: opens sessions, loads adapters, runs jobs, returns how each ended.

It knows no format, no provider and no YAML. One job failing does not lose the others' results.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.job_run import JobResult, JobRun, Observer, Status
from ortdeploy.ledger import Ledger
from ortdeploy.placement import check_placement
from ortdeploy.plan import LoadAdapter, OpenSession, Plan, RunJob
from ortdeploy.runtime.protocol import Runtime, Session

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One run of one plan: what it needs of the world. `stop` tells when to end early."""

    plan: Plan
    run_id: str
    runtime: Runtime
    ledger: Ledger
    observer: Observer
    stop: Callable[[], bool]

    def run(self) -> tuple[JobResult, ...]:
        """Do every step; each job ends in a result."""
        sessions: dict[str, Session | OrtdeployError] = {}
        results = list(self.finished(self.plan))
        for step in self.plan.steps:
            match step:
                case OpenSession():
                    sessions[step.session] = self._open(step)
                case LoadAdapter():
                    self._load_adapter(step, sessions)
                case RunJob():
                    results.append(self._run_job(step, sessions[step.session]))
        return tuple(results)

    @staticmethod
    def finished(plan: Plan) -> tuple[JobResult, ...]:
        """Return the results of jobs that the plan found finished."""
        return tuple(
            JobResult(job=job.job, status=Status.NOTHING_TO_DO, output=job.output, committed=job.rows)
            for job in plan.finished
        )

    def _open(self, step: OpenSession) -> Session | OrtdeployError:
        begin = time.perf_counter()
        try:
            session = self.runtime.open_session(step)
            remark = check_placement(step, session)
        except OrtdeployError as error:
            return error
        if remark is not None:
            log.warning("session.fell_back", model=step.model, reason=remark)
        log.info(
            "session.opened",
            model=step.model,
            providers=[provider.name for provider in step.providers],
            placement=dict(session.placement),
            seconds=round(time.perf_counter() - begin, 3),
        )
        return session

    def _load_adapter(self, step: LoadAdapter, sessions: dict[str, Session | OrtdeployError]) -> None:
        session = sessions[step.session]
        if isinstance(session, OrtdeployError):
            return
        try:
            self.runtime.load_adapter(step, session)
        except OrtdeployError as error:
            sessions[step.session] = error
            return
        log.info("adapter.loaded", adapter=step.adapter, model=step.session)

    def _run_job(self, step: RunJob, session: Session | OrtdeployError) -> JobResult:
        opened = (s for s in self.plan.steps if isinstance(s, OpenSession) and s.session == step.session)
        providers = [provider.name for provider in next(opened).providers]
        with structlog.contextvars.bound_contextvars(job=step.job, model=step.model, providers=providers):
            if isinstance(session, OrtdeployError):
                log.error("job.failed", reason=str(session))
                return JobResult(job=step.job, status=Status.FAILED, output=step.output, reason=str(session))
            run = JobRun(
                plan=self.plan,
                step=step,
                session=session,
                run_id=self.run_id,
                ledger=self.ledger,
                observer=self.observer,
                stop=self.stop,
            )
            return run.run()
