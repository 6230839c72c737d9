"""What it catches: session.intra_op_thread_affinities that does not match the session's threads or the machine's cores.

Why: each thread but the first has one group of processors, numbered from 1. ONNX Runtime refuses another number of
groups ("Number of affinities does not equal to thread_pool_size minus one"). A processor that does not exist is only
logged ("pthread_setaffinity_np failed"), and the thread runs anywhere.

Example:

    intra_op_num_threads: 3
    config: {session.intra_op_thread_affinities: "1,2;3;4"}     # three groups for two threads

How to fix: write a group for each thread but the first, with processors that the message names.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Certainty
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="unusable-affinity", summary="Thread affinities do not fit", certainty=Certainty.MACHINE)

_KEY = "session.intra_op_thread_affinities"


def check(deployment: "Deployment") -> Iterator[Finding]:
    machine = deployment.facts.machine
    for model in deployment.models:
        written = model.spec.session.get("config", {}).get(_KEY)
        if written is None or machine is None:
            continue
        problem = _problem(str(written), deployment.threads_said_of(model) or machine.cores, machine.cores)
        if problem is not None:
            at = (*model.spec.at, "session", "config", _KEY)
            yield Finding(at=at, detail=f'Model "{model.spec.name}": {problem}', model=model.spec.name)


def _problem(text: str, threads: int, cores: int) -> str | None:
    """Say what is wrong with affinities, in sentences."""
    groups = [group for group in text.split(";") if group]
    if threads > 1 and len(groups) != threads - 1:
        return (
            f"{len(groups)} groups of processors for {threads} threads. Write {threads - 1}: the first thread has none."
        )
    for part in (part for group in groups for part in group.split(",")):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if low > high:
            return f"{part} begins with the larger number. Write {high}-{low}."
        if low < 1 or high > cores:
            return f"there is no processor {low if low < 1 else high}. They are numbered from 1 to {cores} here."
    return None
