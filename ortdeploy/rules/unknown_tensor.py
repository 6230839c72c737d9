"""What it catches: an input or output that the manifest names and the model's graph does not have: in a declaration,
under columns:, under values: or under prepare:.

Why: a misspelt declaration would check nothing, and misspelt steps would prepare nothing.

Example:

    inputs: {imgae: {dtype: float32}}

How to fix: use the graph's name.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import did_you_mean
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment, ResolvedJob, ResolvedModel

RULE = Rule(id="unknown-tensor", summary="Model has no such input or output")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for model in deployment.models:
        if model.facts.problem is None:
            yield from _declared(model)
    for job in deployment.jobs:
        if job.model.facts.problem is None:
            yield from _fed(job)


def _declared(model: "ResolvedModel") -> Iterator[Finding]:
    for kind, tensors, values in (
        ("input", model.spec.inputs, model.facts.inputs),
        ("output", model.spec.outputs, model.facts.outputs),
    ):
        known = [value.name for value in values]
        for tensor in tensors:
            if tensor.name not in known:
                detail = f'Model "{model.spec.name}" has no {kind} "{tensor.name}". {did_you_mean(tensor.name, known)}'
                yield Finding(at=tensor.at, detail=detail, key=True, model=model.spec.name)


def _fed(job: "ResolvedJob") -> Iterator[Finding]:
    known = [value.name for value in job.model.facts.inputs]
    of_input = job.spec.input
    named = [
        *((*of_input.at, "columns", name) for name in of_input.columns),
        *((*of_input.at, "values", name) for name in of_input.values),
        *((*job.spec.at, "prepare", name) for name in job.spec.prepare),
    ]
    for at in named:
        name = str(at[-1])
        if name not in known:
            of_paths = name == "image_files" and "images" in known
            how = "Set its image_folder, below which those lie." if of_paths else did_you_mean(name, known)
            detail = f'{job.kind.capitalize()} "{job.spec.model}" has no input "{name}". {how}'
            yield Finding(at=at, detail=detail, key=True, job=job.spec.name)
