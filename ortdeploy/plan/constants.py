"""A value of the manifest that a job or a step of a pipeline feeds to an input of a model."""

from typing import Any

from msgspec import Struct

from ortdeploy.tensors.types import Shape


class PlannedConstant(Struct, frozen=True, kw_only=True):
    """A model input that is fed a value of the manifest's: `shape` is that of one row, or the whole where it has none.

    `row_axis` counts rows in the graph; None: the value is fed whole.
    """

    name: str
    content: Any
    dtype: str
    shape: Shape | None
    row_axis: int | None
