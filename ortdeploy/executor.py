"""Does what a plan's steps say: opens sessions, loads adapters, runs jobs, returns how each ended.

It knows no format, no provider and no YAML. One job failing does not lose the others' results.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import structlog

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.job_run import JobResult, JobRun, Observer, OpenedSession, Status, TriedSession
from ortdeploy.ledger import Ledger
from ortdeploy.placement import check_placement
from ortdeploy.plan import LoadAdapter, OpenSession, Plan, PlannedProvider, PlannedSession, RunJob
from ortdeploy.probe_run import ProbeRun
from ortdeploy.providers.catalogue import CPU
from ortdeploy.runtime.protocol import Runtime, Session

log = structlog.get_logger()

_Opened = OpenedSession | OrtdeployError
"""An open session, or why there is none."""


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
        sessions: dict[str, _Opened] = {}
        results = list(self.finished(self.plan))
        for step in self.plan.steps:
            match step:
                case OpenSession():
                    sessions[step.session] = self._open_first(step, step.candidates, ())
                case LoadAdapter():
                    sessions[step.session] = self._load_adapter(step, sessions[step.session])
                case RunJob():
                    results.append(self._run_job(step, sessions))
        return tuple(results)

    @staticmethod
    def finished(plan: Plan) -> tuple[JobResult, ...]:
        """Return the results of jobs that the plan found finished."""
        return tuple(
            JobResult(job=job.job, status=Status.NOTHING_TO_DO, output=job.output, committed=job.rows)
            for job in plan.finished
        )

    def _open_first(
        self, step: OpenSession, candidates: Sequence[PlannedSession], tried: tuple[TriedSession, ...]
    ) -> _Opened:
        """Open the first candidate that can be opened as the plan says; each one passed over is logged and kept."""
        for index, candidate in enumerate(candidates):
            try:
                session = self._open(step, candidate)
                probe = self._open_probe(step, candidate)
            except OrtdeployError as error:
                log.warning("session.refused", model=step.model, session=candidate.name, reason=str(error))
                tried = (*tried, TriedSession(session=candidate.name, reason=str(error)))
                continue
            return OpenedSession(
                session=session,
                candidate=candidate,
                probe=probe,
                rest=tuple(candidates[index + 1 :]),
                tried=tried,
            )
        return OrtdeployError("; ".join(one.reason for one in tried) or f'model "{step.model}" has no session')

    def _open(self, step: OpenSession, candidate: PlannedSession) -> Session:
        begin = time.perf_counter()
        session = self.runtime.open_session(step, candidate)
        remark = check_placement(step, candidate, session)
        if remark is not None:
            log.warning("session.fell_back", model=step.model, session=candidate.name, reason=remark)
        log.info(
            "session.opened",
            model=step.model,
            session=candidate.name,
            providers=[provider.name for provider in candidate.providers],
            placement=dict(session.placement),
            seconds=round(time.perf_counter() - begin, 3),
        )
        return session

    def _open_probe(self, step: OpenSession, candidate: PlannedSession) -> ProbeRun | None:
        """Open the CPU session that the first batch is compared with, where there is something to compare."""
        if step.probe is None or {provider.name for provider in candidate.providers} == {CPU}:
            return None
        cpu = PlannedSession(name="probe", providers=(PlannedProvider(name=CPU, options={}),))
        rtol, atol = step.probe
        return ProbeRun(session=self.runtime.open_session(_for_cpu(step), cpu), rtol=rtol, atol=atol)

    def _load_adapter(self, step: LoadAdapter, opened: _Opened) -> _Opened:
        if isinstance(opened, OrtdeployError):
            return opened
        try:
            self.runtime.load_adapter(step, opened.session)
            if opened.probe is not None and opened.probe.session is not None:
                self.runtime.load_adapter(step, opened.probe.session)
        except OrtdeployError as error:
            return error
        log.info("adapter.loaded", adapter=step.adapter, model=step.session)
        return opened

    def _run_job(self, step: RunJob, sessions: dict[str, _Opened]) -> JobResult:
        """Run a job; when the provider fails during it, go on with the model's next session where the job stopped."""
        while True:
            opened = sessions[step.session]
            if isinstance(opened, OrtdeployError):
                log.error("job.failed", job=step.job, model=step.model, reason=str(opened))
                return JobResult(job=step.job, status=Status.FAILED, output=step.output, reason=str(opened))
            result = self._run_on(step, opened)
            if not (result.provider_failed and opened.rest):
                return result
            sessions[step.session] = self._open_next(step, opened, result.reason or "")

    def _run_on(self, step: RunJob, opened: OpenedSession) -> JobResult:
        providers = [provider.name for provider in opened.candidate.providers]
        with structlog.contextvars.bound_contextvars(job=step.job, model=step.model, providers=providers):
            run = JobRun(
                plan=self.plan,
                step=step,
                opened=opened,
                run_id=self.run_id,
                ledger=self.ledger,
                observer=self.observer,
                stop=self.stop,
            )
            return run.run()

    def _open_next(self, job: RunJob, failed: OpenedSession, reason: str) -> _Opened:
        """Open the next candidate after one whose provider failed, with the adapters that the job needs."""
        log.warning("session.failed", model=job.model, session=failed.candidate.name, reason=reason)
        tried = (*failed.tried, TriedSession(session=failed.candidate.name, reason=reason))
        opening = next(s for s in self.plan.steps if isinstance(s, OpenSession) and s.session == job.session)
        opened = self._open_first(opening, failed.rest, tried)
        for step in self.plan.steps:
            if isinstance(step, LoadAdapter) and step.session == job.session:
                opened = self._load_adapter(step, opened)
        return opened


_CPU_OPTIONS = (
    "free_dimension_overrides", "execution_mode", "graph_optimization_level", "intra_op_num_threads",
    "inter_op_num_threads", "log_severity_level",
)  # fmt: skip


def _for_cpu(step: OpenSession) -> OpenSession:
    """Keep what the model needs to run at all; leave out what speaks to other providers or writes files."""
    return replace(step, options={k: v for k, v in step.options.items() if k in _CPU_OPTIONS}, run_options={})
