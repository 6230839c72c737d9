"""Turns specs and plans into those of first rows, with all output in a scratch folder.

`ortdeploy try` shows such rows, and `apply` measures on them what a job takes.
"""

from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.facts.data import STRICT_ARRIVALS
from ortdeploy.facts.memory import MeasuredMemory, Way
from ortdeploy.manifest.spec import JobSpec, Spec
from ortdeploy.plan.selection import keep_jobs
from ortdeploy.plan.steps import OpenSession, Plan, RunJob, Step
from ortdeploy.plan.timing import ALWAYS

_SHOWN_BESIDE = {"wav": ("path", "rate"), "image": ("path",), "video": ("path", "frame")}
"""Columns that are shown beside results, by input format; every format also has the row's number."""


class Tryout(Struct, frozen=True, kw_only=True):
    """How many rows of each job are run, and the folder for their results."""

    folder: Path
    rows: int

    def output(self, spec: Spec, job: str) -> Path:
        """Return where the rows of a job are written."""
        return self.folder / spec.name / job

    def of_spec(self, spec: Spec) -> Spec:
        """Return a spec whose jobs run at any hour, find all files new, and write JSON lines into the folder.

        Any number of rows may fail, so that all of them are tried.
        """
        jobs = tuple(_tried_job(job, self.output(spec, job.name)) for job in spec.jobs)
        return replace(spec, jobs=jobs, roots=(*spec.roots, str(self.folder)))

    def of_plan(self, plan: Plan) -> Plan:
        """Return a plan of the first rows, without golden checks and without what is measured before a job."""
        return replace(plan, gates=(), steps=tuple(_tried_step(step, self.rows) for step in plan.steps))


class Measuring(Struct, frozen=True, kw_only=True):
    """A job's first rows that show what it takes, in one way and within a limit; the folder for their results.

    The batch is the job's own or another one.
    """

    folder: Path
    rows: int
    batch: int | None
    way: Way
    limit: int

    def of_plan(self, plan: Plan, job: str) -> Plan:
        """Return a plan of one job's first rows, of whatever it has to run, without anything that leaves the folder."""
        alone = keep_jobs(plan, [job])
        steps = tuple(self._step(step) for step in alone.steps)
        return replace(alone, gates=(), roots=(*plan.roots, str(self.folder)), steps=steps, inputs=())

    def _step(self, step: Step) -> Step:
        if isinstance(step, OpenSession):
            return replace(step, thread_layouts=())
        return self._run(step) if isinstance(step, RunJob) else step

    def _run(self, step: RunJob) -> RunJob:
        rows = _fewer(step, self.rows)
        taken = MeasuredMemory(way=self.way, size=0, rows=self.rows if rows is None else rows)
        known = () if step.limits.forecast is None else (taken,)
        forecast = step.limits.forecast and replace(
            step.limits.forecast, unknown=None, measured=known, callers=self.way.callers
        )
        batching = step.batching if self.batch is None else step.batching.resized(self.batch)
        return replace(
            step,
            input=replace(
                step.input, rows=rows, first_row=0, rows_before=0, gone=(), rerun=(), rerun_rows=0, unreadable=()
            ),
            output=replace(
                step.output,
                path=str(self.folder / "out"),
                removable=False,
                upload=None,
                reports=(),
                committed_rows=0,
                replaces=None,
                aside=None,
                upgraded_at=0,
                changed=(),
                keep=None,
                readers={},
            ),
            errors=replace(step.errors, max_failed="100%", max_consecutive=None),
            limits=replace(step.limits, memory=self.limit, disk=None, forecast=forecast),
            batching=replace(batching, auto=False),
            timing=ALWAYS,
            expect={},
        )


def _tried_job(job: JobSpec, folder: Path) -> JobSpec:
    return replace(
        job,
        input=replace(job.input, arrivals=STRICT_ARRIVALS),
        output=replace(job.output, path=str(folder), url=None, format="jsonl", explode=()),
        max_failed="100%",
        max_consecutive=None,
        reports=(),
        timing=ALWAYS,
    )


def _tried_step(step: Step, rows: int) -> Step:
    if isinstance(step, OpenSession):
        return replace(step, thread_layouts=())
    return _tried_run(step, rows) if isinstance(step, RunJob) else step


def _tried_run(step: RunJob, rows: int) -> RunJob:
    taken = {*step.input.key, *step.output.columns}
    prompts = step.inputs[0].columns[:1] if step.writing else ()
    beside = [name for name in (*_SHOWN_BESIDE.get(step.input.format, ()), *prompts, "row") if name not in taken]
    read = replace(step.input, rows=_fewer(step, rows), key=(*step.input.key, *beside))
    return replace(step, input=read, batching=replace(step.batching, auto=False), expect={})


def _fewer(step: RunJob, rows: int) -> int | None:
    """Return how many rows run under a limit of `rows`; None if nobody has counted them: there may be fewer."""
    return None if step.input.rows is None else min(step.input.rows, rows)
