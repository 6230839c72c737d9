"""Columns that are fed or carried and that cannot be read from the files: what is wrong with them, and what to do."""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ortdeploy.deployment.bound_inputs import Binding
from ortdeploy.diagnostics import as_key
from ortdeploy.facts.data import TEXT_FORMATS, InputFacts
from ortdeploy.facts.problems import Problem
from ortdeploy.tensors.arrow_types import innermost, shown_type

_DECIMAL = "decimal"


def with_column_problem(source: InputFacts, bindings: Sequence[Binding], key: Sequence[str]) -> InputFacts:
    """Return an input with what is wrong with the first column that is fed or carried, if something is."""
    if source.problem is not None or source.missing_package is not None:
        return source
    detail = next(_problems(source, bindings, key), None)
    return source if detail is None else replace(source, problem=Problem(kind="unreadable", detail=detail))


def _problems(source: InputFacts, bindings: Sequence[Binding], key: Sequence[str]) -> Iterator[str]:
    for binding in bindings:
        for name in binding.columns:
            detail = source.differing.get(name) or _unfed(source, binding, name)
            if detail is not None:
                yield f"{detail}."
    yield from (f"{source.differing[name]}." for name in key if name in source.differing and name not in source.types)


def _unfed(source: InputFacts, binding: Binding, name: str) -> str | None:
    """Return why a column cannot feed an input; None if its type does not tell that."""
    kind = source.types.get(name)
    if kind is None or source.format in TEXT_FORMATS:
        return None
    what = f'"{name}", which feeds input "{binding.value.name}", is {shown_type(kind)}'
    if innermost(kind).startswith(_DECIMAL):
        casts = any(
            step.name == "cast" or (step.op is not None and step.op.operator == "Cast") for step in binding.steps
        )
        wanted = binding.target.dtype or "float32"
        advice = f"prepare: {{{as_key(binding.value.name)}: [{{cast: {wanted}}}]}}"
        return None if casts else f"{what}. No model input takes decimals as they are: write {advice}"
    if name in source.columns and source.columns[name].dtype is None and source.columns[name].shape is None:
        return f"{what}, which no model input takes. Write it into the files as numbers or text, or feed another column"
    return None
