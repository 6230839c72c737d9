"""What it catches: threads: auto for a model whose threads cannot be measured, or whose number of threads is written
down.

Why: threads: auto measures how many sessions, callers and threads run a job's own rows best. That needs a job that
names the model, and providers whose threads ONNX Runtime counts. If the manifest fixes a number, there is nothing to
choose.

Example:

    threads: auto
    session: {intra_op_num_threads: 2}

How to fix: keep one of the two. If the model runs in a pipeline, or on an accelerator, write the numbers.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.deployment.threads import ON_THE_PROCESSOR
from ortdeploy.providers.catalogue import full_name
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.document import Path
    from ortdeploy.manifest.spec import ModelSpec, Spec

RULE = Rule(id="unusable-auto-threads", summary="The threads cannot be measured")

_AFFINITIES = "session.intra_op_thread_affinities"


def check(spec: "Spec") -> Iterator[Finding]:
    for model in (model for model in spec.models if model.auto_threads):
        for at, why in _obstacles(spec, model):
            detail = f'Model "{model.name}" has threads: auto, and {why}.'
            yield Finding(at=at, detail=detail, key=True, model=model.name)


def _obstacles(spec: "Spec", model: "ModelSpec") -> "Iterator[tuple[Path, str]]":
    """Yield what is in the way of measuring a model's threads, and where it is written."""
    if model.session.get("intra_op_num_threads"):
        yield (*model.at, "session", "intra_op_num_threads"), "a number of threads. Keep one of the two"
    if _AFFINITIES in model.session.get("config", {}):
        yield (*model.at, "session", "config", _AFFINITIES), "affinities for a number of threads. Keep one of the two"
    if model.use == "all" or any(session.count > 1 or session.callers > 1 for session in model.sessions):
        yield (*model.at, "threads"), "says how many sessions or callers it has. Keep one of the two"
    others = [
        entry.name
        for session in model.sessions
        for entry in spec.chain_of(session)
        if full_name(entry.name) not in ON_THE_PROCESSOR
    ]
    if others:
        yield (
            (*model.at, "threads"),
            f"{others[0]} has no threads to choose. Leave it out, and write count or callers for its sessions",
        )
    if any(job.pipeline is not None for job in spec.jobs if model in spec.models_of(job)):
        yield (*model.at, "threads"), "runs in a pipeline, whose jobs have no rows of its own. Write the numbers"
