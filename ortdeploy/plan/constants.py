"""A value of the manifest's that a model's input is fed: by a job, or by a step of a pipeline."""

from dataclasses import dataclass
from typing import Any

from ortdeploy.tensors.types import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedConstant:
    """A model input that is fed a value of the manifest's: `shape` is that of one row, or the whole where it has none.

    `row_axis` counts rows in the graph; None: the value is fed whole.
    """

    name: str
    content: Any
    dtype: str
    shape: Shape | None
    row_axis: int | None
