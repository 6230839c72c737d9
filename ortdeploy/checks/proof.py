"""Says what a golden data set proves, as `sessions/evidence` says it of rows that are compared.

Zeros prove nothing: a provider that gives zeros passes. Neither do values that are all equal, where there are several.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ortdeploy.checks.golden import GoldenSet
from ortdeploy.sessions.evidence import Evidence, differing
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.elements import widened
from ortdeploy.tensors.tolerances import Tolerance

Tolerances = Mapping[str, Tolerance]
"""By output; that of "" is for all others."""


def why_not_proven(golden: GoldenSet, tolerances: Tolerances) -> str | None:
    """Return why a data set that agrees proves nothing; None if it proves that a session is right."""
    evidence = Evidence(of="values that are fed")
    fed = {name for name, value in golden.inputs.items() if _tells(value, None)}
    given = {name for name, value in golden.outputs.items() if _tells(value, within(tolerances, name))}
    evidence.note_block(1, 0.0, golden.inputs or [""], golden.outputs)
    evidence.agree(1, fed | given | ({""} if not golden.inputs else set()), (0.0, 0.0))
    return evidence.why_not()


def within(tolerances: Tolerances, output: str) -> Tolerance:
    """Return the tolerance of an output."""
    return tolerances.get(output, tolerances[""])


def _tells(value: Any, agree: Tolerance | None) -> bool:
    """Return whether values differ from each other, or a single one from zero; NaN tells nothing."""
    return any(
        differing(values if len(values) > 1 else _with_zero(values), agree) is not None for values in _flat(value)
    )


def _flat(value: Any) -> Iterator[Array]:
    """Yield the arrays of a value, which may be a sequence or a map, as [values], without NaN."""
    if isinstance(value, list | dict):
        items = value.values() if isinstance(value, dict) else value
        arrays = [array for item in items for array in _flat(item)]
        yield from ([np.concatenate(arrays)] if arrays else [])
    elif value is not None:
        array = widened(np.asarray(value)).reshape(-1)
        yield array[~np.isnan(array)] if np.issubdtype(array.dtype, np.inexact) else array


def _with_zero(values: Array) -> Array:
    """Return a single value behind the zero, or the empty text, of its type."""
    return np.concatenate([np.array([""], object) if values.dtype == object else np.zeros(1, values.dtype), values])
