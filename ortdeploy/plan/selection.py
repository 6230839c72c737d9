"""Makes variants of a plan: some of its jobs, or a reference on the CPU provider."""

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from ortdeploy.plan.steps import (
    DeadLetter,
    LoadAdapter,
    OpenSession,
    Plan,
    PlannedCheck,
    PlannedProvider,
    PlannedSession,
    RunJob,
)
from ortdeploy.providers.catalogue import CPU


def recording(checks: Sequence[PlannedCheck]) -> tuple[PlannedCheck, ...]:
    """Return checks that write the CPU provider's outputs: one for each model, whatever sessions it has."""
    of_models: dict[tuple[str, str, str | None], PlannedCheck] = {}
    for check in checks:
        adapter = check.adapter.adapter if check.adapter else None
        of_models.setdefault((check.root, check.opening.model, adapter), check)
    return tuple(replace(check, opening=on_cpu(check.opening), record=True) for check in of_models.values())


_CPU_OPTIONS = (
    "free_dimension_overrides", "execution_mode", "graph_optimization_level", "intra_op_num_threads",
    "inter_op_num_threads", "log_severity_level",
)  # fmt: skip


def on_cpu(step: OpenSession) -> OpenSession:
    """Return a step that opens the model on the CPU provider alone, as the reference for what others compute.

    It keeps what the model needs to run at all, and leaves out what speaks to other providers or writes files. Weights
    are not packed for a session that runs once: that takes longer than it saves, and as much memory again.
    """
    cpu = PlannedSession(name="cpu", providers=(PlannedProvider(name=CPU, options={}),))
    kept = {key: value for key, value in step.options.items() if key in _CPU_OPTIONS}
    options = {**kept, "config": {"session.disable_prepacking": "1"}}
    return replace(step, candidates=(cpu,), options=options, run_options={}, cache=False)


def keep_jobs(plan: Plan, jobs: Collection[str]) -> Plan:
    """Return the part of a plan that some of its jobs need."""
    run = [step for step in plan.steps if isinstance(step, RunJob) and step.job in jobs]
    sessions = {session for step in run for session in step.sessions}
    adapters = {(session, name) for step in run for session in step.sessions for name in step.adapter_names}
    steps = tuple(
        step
        for step in plan.steps
        if step in run
        or (isinstance(step, OpenSession) and step.session in sessions)
        or (isinstance(step, LoadAdapter) and (step.session, step.adapter) in adapters)
    )
    gates = tuple(gate for gate in plan.gates if gate.opening.session in sessions)
    return replace(plan, steps=steps, gates=gates, finished=tuple(done for done in plan.finished if done.job in jobs))


def with_letters(plan: Plan, letters: tuple[DeadLetter, ...]) -> Plan:
    """Return a plan to retry rows that failed on another machine, and no others."""
    return replace(
        plan, steps=tuple(replace(one, letters=letters) if isinstance(one, RunJob) else one for one in plan.steps)
    )


def run_jobs(plan: Plan) -> tuple[RunJob, ...]:
    """Return the steps of a plan that run a job."""
    return tuple(step for step in plan.steps if isinstance(step, RunJob))


def openings_of(plan: Plan, step: RunJob) -> tuple[OpenSession, ...]:
    """Return the steps of a plan that open the sessions of a job."""
    return tuple(one for one in plan.steps if isinstance(one, OpenSession) and one.session in step.sessions)


def output_paths(plan: Plan) -> dict[str, str]:
    """Return the outputs of a plan's jobs by their names, of those that would run and of those that are finished."""
    return {one.job: one.path for one in plan.finished} | {step.job: step.output.path for step in run_jobs(plan)}


def written_paths(plan: Plan) -> list[str]:
    """Return the outputs that a run of a plan writes into; a finished job's too, if something is left over there."""
    return [
        *(step.output.path for step in run_jobs(plan)),
        *(job.path for job in plan.finished if job.left_over is not None),
    ]


def job_names(plan: Plan) -> tuple[str, ...]:
    """Return the jobs of a plan, those that would run and those that are finished."""
    return (*(step.job for step in run_jobs(plan)), *(done.job for done in plan.finished))
