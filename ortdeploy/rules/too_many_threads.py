"""What it catches: a session, or the sessions that a model uses at once, with more threads than this process has cores,
or is allowed to use.

Why: ONNX Runtime sizes its pool by the cores that it sees, and does not see a container's CPU quota. Threads beyond the
quota are throttled together, and every node waits for the slowest. A job that has a caller for each core, because
nothing is written about threads, has no more than it may use.

Example:

    session: {intra_op_num_threads: 16}      # on a board with 4 cores

How to fix: set intra_op_num_threads to at most the number that the message names.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.deployment.threads import threads_at_work, threads_of_session
from ortdeploy.diagnostics import Certainty, Severity
from ortdeploy.plan.thread_layout import BY_RULE
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment, ResolvedModel

RULE = Rule(
    id="too-many-threads", summary="More threads than cores", severity=Severity.WARNING, certainty=Certainty.MACHINE
)


def check(deployment: "Deployment") -> Iterator[Finding]:
    machine = deployment.facts.machine
    if machine is None:
        return
    usable = machine.usable_cores
    for model in (model for model in deployment.models if not _is_decided(model, deployment)):
        written = deployment.threads_said_of(model)
        sessions = model.spec.sessions_at_once
        if threads_at_work(model.spec, written or machine.cores) <= usable:
            continue
        at = (*model.spec.at, "session", "intra_op_num_threads") if written else model.spec.at
        threads = f"{sessions} times {written or machine.cores}" if sessions > 1 else str(written or machine.cores)
        limit = f"{machine.cores} cores" + (f", of which its quota allows {usable}" if usable < machine.cores else "")
        detail = (
            f'Model "{model.spec.name}" gets {threads} threads, and the machine has {limit}. '
            f"Set session: {{intra_op_num_threads: {threads_of_session(model.spec, [usable])}}}."
        )
        yield Finding(at=at, detail=detail, key=True, model=model.spec.name)


def _is_decided(model: "ResolvedModel", deployment: "Deployment") -> bool:
    """Return whether the threads of a model are counted when it is opened: measured, or by rule in all its jobs."""
    jobs = [job for job in deployment.jobs if model in job.models]
    return model.spec.auto_threads or (bool(jobs) and all(job.thread_layout == BY_RULE for job in jobs))
