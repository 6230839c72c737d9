"""Makes a session take and give tensors [rows, …]: moves them to and from the axes that count rows in the graph.

All code outside of a session works on tensors with the rows at axis 0. Values that no row carries are fed here too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ortdeploy.diagnostics import OrtdeployError, as_key
from ortdeploy.plan.constants import PlannedConstant
from ortdeploy.plan.steps import RunJob
from ortdeploy.runtime.protocol import Session
from ortdeploy.sessions.run_limit import end_runs
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.fed_values import as_array
from ortdeploy.tensors.row_axes import to_place
from ortdeploy.tensors.types import format_shape


class RowsFirst:
    """Moves the rows of what one session takes and gives, and feeds it the values that no row carries."""

    def __init__(self, session: Session, step: RunJob) -> None:
        self._session = session
        self._axes = step.row_axes
        fed = [one for one in step.values if one.row_axis is not None or not step.pipeline]  # its steps feed the others
        self._values = [(one, as_array(one.content, one.dtype, one.shape)) for one in fed]
        self.placement = session.placement
        self.cpu_operators = session.cpu_operators
        self.cache = session.cache

    def run(self, outputs: Sequence[str], feeds: Mapping[str, Array], adapters: Sequence[str]) -> Sequence[Array]:
        """Run once: feeds and outputs are [rows, …], whatever the graph's axes. Raises what the session raises."""
        placed = {name: to_axis(array, self._axes.get(name)) for name, array in feeds.items()}
        if self._values:
            rows = len(next(iter(feeds.values()), ()))
            placed |= {one.name: of_rows(one, array, rows) for one, array in self._values}
        values = self._session.run(outputs, placed, adapters)
        return [to_front(value, self._axes.get(name)) for name, value in zip(outputs, values, strict=True)]

    def end_runs(self, *, early: bool) -> None:
        """Ask the session's runs to end early, if it can be asked."""
        end_runs(self._session, early=early)


def to_axis(array: Array, axis: int | None) -> Array:
    """Return a tensor [rows, …] with the rows at the graph's axis. Raises OrtdeployError if it has no such axis."""
    if axis and array.ndim <= axis:
        raise OrtdeployError(f"rows stand at axis {axis}, and the tensor is {format_shape(array.shape)}")
    if not axis or len(array) == 1:  # an axis of one is moved by its name alone
        return array.reshape(to_place(array.shape, axis)) if axis else array
    return np.ascontiguousarray(np.moveaxis(array, 0, axis))


def to_front(value: Any, axis: int | None) -> Any:
    """Return an output as [rows, …]; unchanged if it does not have that axis."""
    if not axis or not isinstance(value, np.ndarray) or value.ndim <= axis:
        return value
    if value.shape[axis] == 1:
        return value.reshape(1, *value.shape[:axis], *value.shape[axis + 1 :])
    return np.ascontiguousarray(np.moveaxis(value, axis, 0))


def not_by_row(output: str, shape: tuple[int, ...], rows: int) -> str:
    """Say that an output does not have one row for each row that was fed, and what to write in the manifest.

    Squeeze without axes leaves no axis of one row, so an axis of size 1 counts rows that were taken to be elsewhere.
    """
    axes = [str(axis) for axis, size in enumerate(shape) if size == rows]
    if rows == 1 and not axes:
        return (
            f"output {output} is {format_shape(shape)} for one row: it has lost the axis that counts rows, as by "
            "Squeeze without axes. Give that operator its axes; or let no run have one row: batch: {last: pad} fills "
            "the last one up. If the output is not by row, say so: "
            f"outputs: {{{as_key(output)}: {{row_axis: none}}}} of the model, or leave it out with columns:"
        )
    which = " or ".join(axes) or "AXIS"
    fed = "one row" if rows == 1 else f"{rows} rows"
    return (
        f"output {output} is {format_shape(shape)} for {fed}: the axis that was taken for the rows does not "
        f"count them. Say which one does, outputs: {{{as_key(output)}: {{row_axis: {which}}}}} of the model (none: "
        "it is not by row), leave the output out with columns:, or use batch: {size: none}"
    )


def of_rows(planned: PlannedConstant, array: Array, rows: int) -> Array:
    """Return a constant […] for a run: whole, or once for each row, with the rows at the graph's axis."""
    if planned.row_axis is None:
        return array
    return to_axis(np.broadcast_to(array, (rows, *array.shape)).copy(), planned.row_axis)
