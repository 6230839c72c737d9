"""What it catches: prepared rows whose rank, dimensions or layout differ from those of the model input; or two inputs
that give one symbolic dimension two sizes.

Why: at best, ONNX Runtime refuses the batch. If the sizes happen to fit, an NHWC image in an NCHW model silently gives
wrong results, and a buffer with another number of elements has crashed CUDA sessions.

Example: images prepared as [rows, 8, 8, 1] for an input [batch, 1, 8, 8].

How to fix: add the step that is missing (layout, resize, flatten, expand), or correct the declared shape.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import as_key
from ortdeploy.rules.protocol import Finding, Rule
from ortdeploy.tensors.layouts import first_misfit, fitting_layout, layout_step
from ortdeploy.tensors.types import Shape, format_shape, is_of_one_row, row_in_words

if TYPE_CHECKING:
    from ortdeploy.deployment.bound_inputs import Binding
    from ortdeploy.deployment.resolved import Deployment, ResolvedJob

RULE = Rule(id="input-shape-mismatch", summary="Rows do not have the input's shape")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        sizes = _Sizes(job.batching.size)
        for binding in job.bindings if job.comparable else ():
            name = binding.value.name
            problem = _compare(binding, batched=job.batching.size is not None) or sizes.solve(binding)
            if problem:
                prepared = " after its prepare steps" if binding.steps else ""
                detail = f'Input "{name}" {_wanted(binding)} and gets {binding.final}{prepared}. {problem}'
                detail += _advice(binding, job) if job.batching.size is not None else ""
                at = (*job.spec.at, "prepare", name) if binding.steps else (*job.spec.input.at, "columns", name)
                yield Finding(at=at, detail=detail, key=True, job=job.spec.name, model=job.spec.model)


def _wanted(binding: "Binding") -> str:
    """Return what an input takes, and what the manifest declares if that is not the same."""
    declared = binding.declared_shape
    if declared is None or declared == binding.target.shape:
        return f"takes {binding.target}"
    return f"takes {binding.target}, is declared as {format_shape(declared)},"


def _advice(binding: "Binding", job: "ResolvedJob") -> str:
    """Return what to write if rows are texts and lists are wanted, or the whole input of the graph looks like a row."""
    have, want, name = binding.final.shape, binding.target.shape, binding.value.name
    if binding.target.dtype == "string" and have and want and (len(have), len(want)) == (1, 2):
        return f" If rows have one text each, write prepare: {{{name}: [{{expand: 0}}]}}."
    if not is_of_one_row(have, want):
        return ""
    if job.pipeline and job.pipeline.spec.preset:
        lists = name in {"messages", "stop"}
        return " It takes a list as one text, its JSON in quotes." if lists else ""
    how = "by_row: true to the run step that feeds it" if job.pipeline else "batch: {size: none} to the job"
    return f" If the model has no dimension for rows, add {how}."


class _Sizes:
    """The symbolic dimensions of one job: each is one number, whoever says it first."""

    def __init__(self, run_size: int | None) -> None:
        self._run_size = run_size
        self._solved: dict[str, tuple[int, str]] = {}

    def solve(self, binding: "Binding") -> str | None:
        """Bind the symbols of an input to what the batch, the declaration and the data make of them."""
        symbols = binding.target.shape or ()
        declared = binding.declared_shape or ()
        given = (None, *(binding.final.shape or ())[1:]) if self._run_size else (binding.final.shape or ())[1:]
        pairs = [
            *zip(symbols[:1], [self._run_size], ["the batch size"], strict=False),
            *(
                (symbol, size, f'the declaration of "{binding.value.name}"')
                for symbol, size in zip(symbols, declared, strict=False)
            ),
            *((symbol, size, f'input "{binding.value.name}"') for symbol, size in zip(symbols, given, strict=False)),
        ]
        for symbol, size, who in pairs:
            if isinstance(size, int) and isinstance(symbol, str):
                known, other = self._solved.setdefault(symbol, (size, who))
                if size != known:
                    return f'"{symbol}" must be one number, but {who} makes it {size}, and {other} makes it {known}.'
        return None


def _compare(binding: "Binding", *, batched: bool) -> str | None:
    """Compare one row of what comes with one row of what the graph, and then the manifest, says."""
    if binding.final.shape is None or binding.problem is not None:
        return None
    row = binding.final.shape[1:]
    declared = binding.declared.tensor if binding.declared else None
    for who, shape in (("the model", binding.target.shape), ("the manifest", binding.declared_shape)):
        want = shape[1:] if batched and shape else shape
        if want is None:
            continue
        if len(row) != len(want):
            return f"A row is {row_in_words(row)}, and {who} wants {row_in_words(want)}."
        problem = _compare_sizes(binding, row, want, who)
        if problem is not None:
            return problem
    have, taken = binding.final.layout, binding.target.layout
    if declared and declared.layout and have not in {None, declared.layout}:
        return f"It is {have}, {declared.layout} is declared. {_layout_step(binding, declared.layout)}"
    if taken and have not in {None, taken}:
        return f"It is {have}, and the graph takes it as {taken}. {_layout_step(binding, taken)}"
    return None


def _compare_sizes(binding: "Binding", row: Shape, want: Shape, who: str) -> str | None:
    """Compare the sizes of a row with those that are wanted: as they are, and if they do not fit, in another layout."""
    have, taken = binding.final.layout, binding.target.layout
    wrong = first_misfit(row, want, have)
    if wrong is None:
        return None
    layout = fitting_layout(binding.final, want, taken)
    if layout is not None:
        first = f"It is {have}" if have else "Its axes stand in another order"
        return f"{first}, and {who} wants {layout}. {_layout_step(binding, layout)}"
    also = f" It is {have}, and the graph takes it as {taken}. {_layout_step(binding, taken)}" if have and taken else ""
    return f"Dimension {wrong} of a row is {row[wrong]}, {who} wants {want[wrong]}.{also if have != taken else ''}"


def _layout_step(binding: "Binding", layout: str) -> str:
    """Return the step that is missing, and where it belongs."""
    step = f"{{{layout_step(binding.final, layout)}}}"
    if binding.steps:
        return f"Add {step} as the last step."
    return f"Add {step} as the last step: prepare: {{{as_key(binding.value.name)}: [{step}]}}."
