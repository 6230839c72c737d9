"""A value of the manifest that a job or a step of a pipeline feeds to an input of a model."""

from typing import Any

from ortdeploy.records import record
from ortdeploy.tensors.types import Shape


@record
class PlannedConstant:
    """A model input that is fed a value of the manifest's: `shape` is that of one row, or the whole where it has none.

    `row_axis` counts rows in the graph; None: the value is fed whole.
    """

    name: str
    content: Any
    dtype: str
    shape: Shape | None
    row_axis: int | None
