"""Runs a plan in a child process, so that a provider that aborts ends only the child.

The child says over a pipe what it is about to do. If it dies, its last message says what went wrong. The job continues
with the next session of the model. If there is none and native code crashed, the next child is watched closely: one
thread works at a time, and says which rows it runs. If they crash that child, they are split like those of any batch
that failed, until the bad rows are alone and become failed rows. What crashes otherwise ends the jobs of the model, and
other jobs continue without them.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from ortdeploy.diagnostics import LockedError, OrtdeployError
from ortdeploy.events import log
from ortdeploy.jobs.executor import Execution
from ortdeploy.plan.plan_file import encode
from ortdeploy.plan.selection import keep_jobs, run_jobs
from ortdeploy.plan.steps import OpenSession, Plan, PlannedSession, RunJob
from ortdeploy.process import last_words
from ortdeploy.process.child import CRASHES, Child, how_it_ended
from ortdeploy.process.native_output import last_error_line
from ortdeploy.results.results import JobResult, Status
from ortdeploy.sessions.opening import SkippedSession
from ortdeploy.streaming.crashed_runs import CrashedRun, CrashedRuns, encode_crashed_runs


class ChildBugError(Exception):
    """The child failed by a bug of ortdeploy; the message is its traceback."""


class _Attempt(Struct):
    """The outcome of one child: results, its last message if it died, and the job whose run it could not end.

    `rows` are those that it ran, if it was watched closely; `how` it ended. `is_native`: native code crashed. `proving`
    is the job whose rows it compared with what they give in other batches.
    """

    results: list[JobResult] = field(default_factory=list)
    doing: Mapping[str, str] | None = None
    opened: dict[str, str] = field(default_factory=dict)
    rows: tuple[int, ...] = ()
    stuck: JobResult | None = None
    crash: str | None = None
    how: str = ""
    is_native: bool = False
    proving: str | None = None


class Supervisor(Struct):
    """Runs one plan. `settings` are passed to the child; `close_job` records a job that a crash ended.

    `unrun` returns how the jobs of a plan end that a signal keeps from beginning. `closely`: native code crashed in an
    earlier run of the plan, so each run is told.
    """

    plan: Plan
    module: str
    settings: Mapping[str, Any]
    close_job: Callable[[RunJob, str], JobResult]
    unrun: Callable[[Plan], Sequence[JobResult]]
    stopped: Callable[[], bool]
    closely: bool = False
    _skipped: dict[str, tuple[SkippedSession, ...]] = field(default_factory=dict)
    _fatal: dict[str, CrashedRuns] = field(default_factory=dict)
    _began: dict[str, float] = field(default_factory=dict)
    _unproven: dict[str, str] = field(default_factory=dict)
    _asked_to_end: set[int] = field(default_factory=set)
    _child: "Child | None" = None

    def run(self) -> tuple[JobResult, ...]:
        """Run the plan to its end. Raises LockedError, OrtdeployError and ChildBugError as the child did."""
        left = replace(self.plan, finished=tuple(job for job in self.plan.finished if job.left_over is not None))
        results = list[JobResult]()
        while any(isinstance(step, RunJob) for step in left.steps) and not self.stopped():
            attempt = self._attempt(left)
            results += attempt.results
            if attempt.stuck is not None and not self._may_go_on(attempt.stuck):
                results.append(attempt.stuck)
            elif attempt.stuck is None and attempt.crash is None:
                break
            done = {result.job for result in results}
            left = keep_jobs(left, [s.job for s in left.steps if isinstance(s, RunJob) and s.job not in done])
            if attempt.crash is not None:
                left, failed = self._go_on(left, attempt)
                results += failed
        known = {result.job for result in results}
        others = tuple(job for job in self.plan.finished if job.job not in known)
        if self.stopped():
            results += self.unrun(keep_jobs(left, [step.job for step in run_jobs(left) if step.job not in known]))
        return (*Execution.finished(replace(self.plan, finished=others)), *results)

    def forward(self, number: int) -> None:
        """Hand a signal on to the child."""
        self._asked_to_end |= {-number, 128 + number}  # at once, if it does not wait for signals yet
        if self._child is not None:
            self._child.send_signal(number)

    def _attempt(self, plan: Plan) -> _Attempt:
        """Run a plan in a child of its own session: a terminal's signals reach it only through `forward`."""
        attempt = _Attempt()
        skipped = {model: [[one.session, one.reason] for one in skipped] for model, skipped in self._skipped.items()}
        request = {
            **self.settings,
            "plan": encode(plan, packed=True),
            "skipped": skipped,
            "fatal": encode_crashed_runs(self._fatal),
            "closely": self.closely,
            "began": self._began,
            "unproven": self._unproven,
        }
        self._child = Child(self.module, request, keeps_stderr=True, own_session=True)
        with self._child as child:
            for message in child.messages():
                _take_message(attempt, message)
                if message["kind"] == "doing" and "job" in message:
                    self._began.setdefault(message["job"], time.monotonic())
            code = child.wait()
            jobs = {step.job for step in plan.steps if isinstance(step, RunJob)}
            missing = jobs - {result.job for result in attempt.results} and not self.stopped()
            if attempt.stuck is None and (code != 0 or missing) and code not in self._asked_to_end:
                attempt.how, attempt.is_native = how_it_ended(code), code in CRASHES
                attempt.crash = f"{_describe(attempt)}.{last_error_line(child.printed())}"
        return attempt

    def _may_go_on(self, stuck: JobResult) -> bool:
        """Note the rows of a run that ended with its child; return whether another child can do without that run."""
        return self._is_new(stuck.job, CrashedRun(rows=frozenset(stuck.stuck))) and not self.stopped()

    def _is_new(self, job: str, run: CrashedRun) -> bool:
        """Note a run that ended its child; return whether no earlier child ended with it."""
        known = self._fatal.get(job, ())
        self._fatal[job] = (*known, run)
        return run.rows not in {one.rows for one in known}

    def _isolates(self, attempt: _Attempt) -> bool:
        """Return whether another child finds, or can do without, the rows that crashed this one."""
        doing = attempt.doing or {}
        if "job" not in doing or not attempt.is_native:
            return False
        job, model = doing["job"], doing["model"]
        if not self.closely:
            self.closely = True
            log.warning("run.watched", job=job, model=model, reason=attempt.crash)
            return True
        if not attempt.rows:
            return False
        first, last = attempt.rows[0], attempt.rows[-1]
        log.warning("run.crashed", job=job, model=model, first=first, last=last, reason=attempt.crash)
        return self._is_new(job, CrashedRun(rows=frozenset(attempt.rows), crash=attempt.how))

    def _go_on(self, plan: Plan, attempt: _Attempt) -> tuple[Plan, list[JobResult]]:
        """Return the remaining plan after a crash, and the jobs that the crash ended."""
        reason = attempt.crash or ""
        if attempt.proving is not None and attempt.is_native and attempt.proving not in self._unproven:
            log.warning("rows.not_compared", job=attempt.proving, reason=reason)
            self._unproven[attempt.proving] = f"the process {attempt.how}"
            return plan, []
        model = attempt.doing["model"] if attempt.doing else None
        opening = next((s for s in plan.steps if isinstance(s, OpenSession) and s.model == model), None)
        session = None if opening is None else _blamed(attempt, opening)
        if opening is not None and session is not None:
            rest = _candidates_after(opening, session)
            if rest:
                log.warning("session.failed", model=model, session=session, instance=0, reason=reason)
                self._skipped[opening.model] = (
                    *self._skipped.get(opening.model, ()),
                    SkippedSession(session=session, reason=reason),
                )
                steps = tuple(replace(step, candidates=rest) if step is opening else step for step in plan.steps)
                return replace(plan, steps=steps), []
        if self._isolates(attempt):
            return plan, []
        lost = [step for step in plan.steps if isinstance(step, RunJob) and model in {None, step.model}]
        kept = [step.job for step in plan.steps if isinstance(step, RunJob) and step not in lost]
        return keep_jobs(plan, kept), [self.close_job(step, reason) for step in lost]


def _blamed(attempt: _Attempt, opening: OpenSession) -> str | None:
    """Return the session that the child was opening or running on; None if several ran at once."""
    if opening.use == "all" and attempt.doing is not None and "job" in attempt.doing:
        return None
    return attempt.opened.get(opening.model)


def _candidates_after(opening: OpenSession, session: str) -> tuple[PlannedSession, ...]:
    """Return the remaining candidates after one whose process died."""
    if opening.use == "all":
        return () if opening.on_unavailable == "fail" else tuple(c for c in opening.candidates if c.name != session)
    names = [candidate.name for candidate in opening.candidates]
    return opening.candidates[names.index(session) + 1 :]


def _take_message(attempt: _Attempt, message: Mapping[str, Any]) -> None:
    """Note the child's next action, or the end of a job. Raises what ended the child."""
    match message["kind"]:
        case "doing":
            attempt.doing = message
            last_words.doing(**{name: text for name, text in message.items() if name != "kind"})
            if "session" in message:
                attempt.opened[message["model"]] = message["session"]
            attempt.rows, attempt.proving = (), None
        case "proving":
            attempt.proving = message["job"] if message["begins"] else None
        case "running":
            attempt.rows = tuple(message["rows"])
        case _:
            result = result_in(message)
            if result.stuck:
                attempt.stuck = result
            else:
                attempt.results.append(result)


def result_in(message: Mapping[str, Any]) -> JobResult:
    """Return the result of a job that a child has told. Raises what ended the child."""
    match message["kind"]:
        case "result":
            plain = message["result"]
            return JobResult(**{**plain, "status": Status(plain["status"]), "stuck": tuple(plain["stuck"])})
        case "locked":
            raise LockedError(message["reason"], message.get("output"))
        case "error":
            raise OrtdeployError(message["reason"])
        case _:
            raise ChildBugError(message["reason"])


def _describe(attempt: _Attempt) -> str:
    doing = attempt.doing or {}
    if "job" in doing:
        doing = {**doing, "session": attempt.opened.get(doing["model"], "")}
    return f"the process that {last_words.what_it_did(doing, [])} {attempt.how}"


def result_message(result: JobResult) -> dict[str, Any]:
    """Return a job's result as the message that `Supervisor` reads."""
    counts = ("committed", "failed", "skipped", "seconds")
    fields = ("job", "status", "output", *counts, "reason", "stuck", "refused", "overtaken")
    return {"kind": "result", "result": {name: getattr(result, name) for name in fields}}
