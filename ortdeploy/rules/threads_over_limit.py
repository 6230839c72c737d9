"""What it catches: sessions that are given more threads than the limits of a job allow.

Why: limits: {threads: 2} divides two threads over the sessions of a job's model. But a number under session: takes
precedence, so the job would use more threads than its limits allow. Each session has at least one thread.

Example:

    session: {intra_op_num_threads: 4}
    …
    limits: {threads: 2}

How to fix: leave intra_op_num_threads out, raise the limit, or open fewer sessions or callers at once.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.deployment.threads import threads_at_work
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="threads-over-limit", summary="More threads than the limit")


def check(spec: "Spec") -> Iterator[Finding]:
    pairs = [(job, model) for job in spec.jobs if job.limits.threads is not None for model in spec.models_of(job)]
    for job, model in pairs:
        limit = job.limits.threads or 0
        written = model.session.get("intra_op_num_threads", 0)
        threads = threads_at_work(model, written or 1)
        if threads > limit:
            each = f"{written} threads each" if written else "a thread each"
            each += f" and {model.callers} callers" if model.callers > 1 else ""
            detail = (
                f'Job "{job.name}" may use {limit} threads, and the {model.sessions_at_once} sessions of '
                f'model "{model.name}" have {each}. Leave intra_op_num_threads out, raise limits: {{threads: …}}, or '
                "open fewer sessions, with fewer callers."
            )
            at = (*model.at, "session", "intra_op_num_threads") if written else model.at
            yield Finding(at=at, detail=detail, key=True, model=model.name, job=job.name)
