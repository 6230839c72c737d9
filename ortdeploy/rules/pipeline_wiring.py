"""What it catches: names in the steps of a pipeline that do not fit together: a name that two steps make, or that is
used before the step that makes it. Also settings of a job that a pipeline cannot have.

Why: each value comes from one step, and steps run in the order in which they are written. In a cycle, some name is used
before it is made.

Example:

    steps:
      - {run: reader, in: {image: $crop}, out: {scores: scores}}
      - {do: crop, in: {image: $image, boxes: $boxes}, out: crop}

How to fix: put the step that makes a value before those that use it, and give every value its own name.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ortdeploy.manifest.pipelines import WITHOUT_ADAPTERS
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.pipelines import StepOfPipeline
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="pipeline-wiring", summary="Steps of a pipeline do not fit together")


def check(spec: "Spec") -> Iterator[Finding]:
    for pipeline in spec.pipelines:
        yield from _check_steps(pipeline.steps, set())
    for job in spec.jobs:
        if job.pipeline is not None and job.batch.is_none:
            detail = f'Job "{job.name}" runs a pipeline, whose values have the rows first. Remove size: none.'
            yield Finding(at=(*job.at, "batch", "size"), detail=detail, job=job.name)
        ran = spec.pipeline(job.pipeline)
        if ran is not None and ran.writer is None and job.adapters.names:
            detail = f'Job "{job.name}" runs a pipeline. Name adapters at its steps: {{run: MODEL, adapter: NAME, …}}.'
            if ran.preset is not None and ran.preset.sees:
                detail = f'Job "{job.name}" writes about pictures, and {WITHOUT_ADAPTERS}. Remove adapter.'
            yield Finding(at=(*job.at, "adapter"), detail=detail, key=True, job=job.name)


def _check_steps(steps: "Sequence[StepOfPipeline]", outer: set[str]) -> Iterator[Finding]:
    """Check steps that see the values of those around them; names inside an each are its own."""
    later = [{name for _, name in step.outputs} for step in steps]
    made = set(outer)
    for index, step in enumerate(steps):
        to_come = set().union(*later[index:]) - made
        used = [*step.wires.items(), *([("each", step.name)] if step.kind == "each" else [])]
        for argument, name in used:
            if name in to_come:
                at = (*step.at, "each") if step.kind == "each" else (*step.at, "in", argument)
                detail = (
                    f"${name} is used before it is made. Put the step that makes it first; cycles are not possible."
                )
                yield Finding(at=at, detail=detail)
        if step.kind == "each":
            yield from _check_steps(step.steps, made | {step.item} | set(step.state))
        for place, name in step.outputs:
            if name in made:
                at = (*step.at, "collect" if step.kind == "each" else "out")
                yield Finding(
                    at=(*at, place) if step.kind != "do" else at, detail=f"${name} is made already. Use another name."
                )
            made.add(name)
