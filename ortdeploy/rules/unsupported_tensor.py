"""What it catches: an input or output that rows cannot carry: an input that is not a tensor, or that has no dimension
for rows although the job runs in batches; an output that is a sequence or map, if the output's format, a postprocess
step or the batch cannot take one; an output that lists maps, or in each row another number of items, if the output's
format cannot hold it; an element type that ortdeploy does not have.

Why: classifiers exported from scikit-learn give a sequence of maps, one per row, by default. Parquet, Arrow and JSON
lines hold those, and lists such as the segments of a recording; CSV and arrays do not. Any other sequence or map
belongs to a run and not to a row, and so does a scalar input.

Example: an output of type seq(map(int64, tensor(float))) with format: npz.

How to fix: write format: parquet or jsonl, leave the output out with columns:, use batch: {size: none}, or export with
zipmap off.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import with_article
from ortdeploy.rules.protocol import Finding, Rule
from ortdeploy.tensors.types import MAP

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment, ResolvedJob
    from ortdeploy.facts.models import ValueFacts

RULE = Rule(id="unsupported-tensor", summary="Input or output that rows cannot carry")


_NESTED = ("arrow", "jsonl", "parquet")
"""Formats of outputs that hold lists and maps."""
_WHOLE = (
    "has no dimension for rows, so that no column can feed it. Give its value, input: {values: {NAME: …}}, or use "
    "batch: {size: none}"
)


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        for binding in job.bindings:
            told = job.pipeline is None or binding.columns  # a pipeline takes what its column is
            reason = _reason(binding.value) if told and not binding.unknown else None
            if binding.value.kind != "tensor":
                reason = f"is {with_article(binding.value.kind)}; columns of rows feed tensors only"
            elif job.batching.size and binding.axis is None:
                reason = _WHOLE
            if reason:
                detail = f'Input "{binding.value.name}" of {job.kind} "{job.spec.model}" {reason}.'
                yield Finding(at=job.spec.input.at, detail=detail, key=True, job=job.spec.name, model=job.spec.model)
        for value in job.model.facts.outputs:
            known = value.tensor.dtype is not None or job.pipeline is None  # a pipeline's values are known when it runs
            reason = _output_reason(value, job) if value.name in job.needed and known else None
            if reason:
                detail = f'Output "{value.name}" of {job.kind} "{job.spec.model}" {reason}. {_remedy(value, job)}'
                yield Finding(at=job.spec.output.at, detail=detail, key=True, job=job.spec.name, model=job.spec.model)


def _output_reason(value: "ValueFacts", job: "ResolvedJob") -> str | None:
    if value.kind == "tensor":
        return _nested_reason(value, job) or _reason(value)
    if value.kind == "sparse":
        return "is a sparse tensor, which ONNX Runtime does not give to Python"
    if job.spec.output.format not in _NESTED:
        what = with_article(value.kind)
        return f"is {what}, which {job.spec.output.format} cannot hold; use format: jsonl, parquet or arrow"
    if _is_read(value, job):
        return f"is {with_article(value.kind)}, and postprocess steps read tensors"
    if job.batching.size and value.element != "map":
        return f"is {with_article(value.kind)} of a whole run, not of each row; use batch: {{size: none}}"
    return None


def _nested_reason(value: "ValueFacts", job: "ResolvedJob") -> str | None:
    output, has_maps = job.spec.output, value.tensor.dtype == MAP
    if output.format in _NESTED or not (has_maps or (value.ragged and value.name not in output.explode)):
        return None
    what = "lists maps" if has_maps else "lists another number of items in each row"
    names = ", ".join(one.name for one in job.model.facts.outputs if one.ragged and one.name in job.columns)
    lines = "" if has_maps else f", or write a line for each item, explode: [{names}]"
    return f"{what}, which {output.format} cannot hold; use format: jsonl, parquet or arrow{lines}"


def _remedy(value: "ValueFacts", job: "ResolvedJob") -> str:
    remedy = "Take that step away" if _is_read(value, job) else "Leave it out with columns:"
    tensor = (
        ", or export it as a tensor: skl2onnx has options={'zipmap': False} for that" if value.element == "map" else ""
    )
    return f"{remedy}{tensor}."


def _is_read(value: "ValueFacts", job: "ResolvedJob") -> bool:
    return any(value.name in step.reads for step in job.postprocess)


def _reason(value: "ValueFacts") -> str | None:
    return None if value.tensor.dtype else "has an element type that rows cannot have here"
