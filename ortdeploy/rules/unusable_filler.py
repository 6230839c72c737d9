"""What it catches: a value under missing: that its column cannot use: the column feeds no input, the format of the
files has no empty values, or the model input takes another kind of value.

Why: the filler would never be used. Or the rows that need it would fail, perhaps weeks later.

Example: missing: {age: unknown}, if the model's input takes float32.

How to fix: write a number for numbers and text for text. nan is for floating-point numbers, and for whole numbers of a
table, which are then read as float64. The key is the name of a column, or a pattern that matches it: {"*": nan, city:
unknown}.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ortdeploy.deployment.column_patterns import is_pattern, matching
from ortdeploy.diagnostics import did_you_mean
from ortdeploy.facts.data import FORMATS_WITH_GAPS, TEXT_FORMATS
from ortdeploy.manifest.spec import ALL_COLUMNS
from ortdeploy.rules.protocol import Finding, Rule
from ortdeploy.tensors.types import FLOATING

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment, ResolvedJob

RULE = Rule(id="unusable-filler", summary="Filler that the column cannot use")


def check(deployment: "Deployment") -> Iterator[Finding]:
    for job in deployment.jobs:
        for key in job.spec.input.missing if job.readable else ():
            problem = _problem(job, key)
            if problem:
                at = (*job.spec.input.at, "missing", *([] if key == ALL_COLUMNS else [key]))
                yield Finding(at=at, detail=problem, key=True, job=job.spec.name, model=job.spec.model)


def _problem(job: "ResolvedJob", key: str) -> str | None:
    """Say why the value under a column, or a pattern of columns, is of no use to one of them."""
    if job.input.format not in FORMATS_WITH_GAPS:
        return f"Files in the format {job.input.format} have no empty values. Remove missing:."
    fed = [name for binding in job.bindings for name in binding.columns if name not in binding.unknown]
    told = is_pattern(key, job.input.columns)
    columns = [name for name in fed if matching(key, [name])] if told else [name for name in fed if name == key]
    if not columns and any(binding.unknown for binding in job.bindings):
        return None  # what is to be fed is not known
    if not columns:
        what = "a column that matches " if told else ""
        return f'No model input is fed from {what}"{key}". {did_you_mean(key, fed)}'
    filled = (name for name in columns if not told or _pattern_of(job, name) == key)
    return next((found for name in filled if (found := _misfit(job, name, told=told))), None)


def _pattern_of(job: "ResolvedJob", column: str) -> str | None:
    """Return the key under missing: that a column takes its value from."""
    written = job.spec.input.missing
    return column if column in written else next((key for key in written if matching(key, [column])), None)


def _misfit(job: "ResolvedJob", column: str, *, told: bool) -> str | None:
    taker = next(binding for binding in job.bindings if column in binding.columns)
    in_text = job.input.format in TEXT_FORMATS
    filler, dtype = job.missing[column], taker.source.dtype if in_text else job.input.columns[column].dtype
    if filler is None or dtype is None or _fits(filler, dtype, told=told):
        return None
    if filler == "nan" and dtype != "string" and not in_text:
        return None
    advice = f" Write a filler for this column: missing: {{{column}: …}}." if told else ""
    return (
        f'"{column}" feeds input "{taker.value.name}", which takes {dtype}, and {filler!r} is not of that type.{advice}'
    )


def _fits(filler: Any, dtype: str, *, told: bool) -> bool:
    if dtype == "string":
        return isinstance(filler, str) and not (told and filler == "nan")
    if filler == "nan":
        return dtype in FLOATING
    if dtype in FLOATING:
        return isinstance(filler, int | float) and not isinstance(filler, bool)
    return isinstance(filler, bool) if dtype == "bool" else isinstance(filler, int) and not isinstance(filler, bool)
