"""The runs of a job's models: which steps run them, with how many rows together, and the shapes that they are fed."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from ortdeploy.deployment.bound_inputs import Binding
from ortdeploy.deployment.resolved import ResolvedJob, ResolvedModel
from ortdeploy.deployment.typed_steps import TypedStep
from ortdeploy.manifest.document import Path
from ortdeploy.tensors.row_axes import RowAxes, to_place
from ortdeploy.tensors.types import ROWS, TensorType

Sizes = tuple[int | None, ...]
Shapes = dict[str, Sizes]


class ModelRun(Struct, frozen=True, kw_only=True):
    """The runs of a model by a job, or by one step of its pipeline.

    `rows` are the most rows that one run has, `fewest` the fewest, or items of rows if it is `in_each`; `at` is where
    the manifest says that. `shapes` are those of the inputs in a run of the most, as the graph has them; its rows are
    at `axes`.
    """

    model: ResolvedModel
    shapes: Shapes
    axes: RowAxes
    rows: int
    fewest: int
    at: Path
    in_each: bool = False

    def of_rows(self, rows: int) -> Shapes:
        """Return the shapes of the inputs in a run of a number of rows."""
        shapes = {}
        for name, sizes in self.shapes.items():
            axis = self.axes.of_input(name)
            shapes[name] = sizes if axis is None else (*sizes[:axis], rows, *sizes[axis + 1 :])
        return shapes


def model_runs(job: ResolvedJob, batch: int) -> Iterator[ModelRun]:
    """Yield the runs of each model that a job runs, in batches of some rows; none of a preset's."""
    at: Path = (*job.spec.at, "batch", "size")
    fewest = job.batching.short_batch(job.input.rows or 0) or batch
    if job.pipeline is None:
        shapes = job.run_shapes(batch)
        axes = job.axes if job.batching.size else RowAxes(inputs=dict.fromkeys(shapes))
        yield ModelRun(model=job.model, shapes=shapes, axes=axes, rows=batch, fewest=fewest, at=at)
    elif job.pipeline.types is not None:
        rows, fewest = (1, 1) if job.has_state else (batch, fewest)
        yield from _Runs(job).of(job.pipeline.types.steps, rows, fewest, at)


class _Runs:
    def __init__(self, job: ResolvedJob) -> None:
        self._adapters = job.adapter_shapes
        self._parts = {part.spec.name: part for part in job.pipeline.parts} if job.pipeline else {}
        self._arriving = {one.value.name: one for one in job.bindings}

    def of(
        self, steps: Sequence[TypedStep], rows: int, fewest: int, at: Path, *, in_each: bool = False
    ) -> Iterator[ModelRun]:
        """Yield the runs of steps, and of those inside of them."""
        for step in steps:
            if step.spec.kind == "run":
                most = step.fixed_rows or rows  # fewer are filled up
                fed = list(_fed(step, most, self._arriving))
                axes = {name: axis for name, _, axis in fed} | dict.fromkeys(self._adapters)
                yield ModelRun(
                    model=self._parts[step.spec.name],
                    shapes={name: sizes for name, sizes, _ in fed} | self._adapters,
                    axes=RowAxes(inputs=axes),
                    rows=most,
                    fewest=step.fixed_rows or fewest,
                    at=at,
                    in_each=in_each,
                )
            if step.inner:
                yield from self.of(step.inner, *_items(step, rows, fewest), (*step.spec.at, "batch"), in_each=True)


def _items(step: TypedStep, rows: int, fewest: int) -> tuple[int, int]:
    """Return the most items, and the fewest, that an `each` runs together, of the most and the fewest rows."""
    most = step.spec.batch
    if step.spec.state:
        return (min(most, rows), 1) if step.state_by_row else (1, 1)
    shape = step.types[step.spec.name].shape if step.spec.name in step.types else None
    count = shape[1] if shape is not None and len(shape) > 1 else None
    if not isinstance(count, int):
        return most, 1
    left = [some * count % most for some in (rows, fewest)]
    return max(1, min(most, rows * count)), max(1, min(one or most for one in left))


def _fed(step: TypedStep, rows: int, arriving: Mapping[str, Binding]) -> Iterator[tuple[str, Sizes, int | None]]:
    """Yield the inputs of a step's model with the sizes that it is fed, and the axis of its rows.

    Of what columns feed, the sizes are those of rows.
    """
    for name, tensor in step.types.items():
        column, shape = arriving.get(step.wires.get(name, "")), tensor.shape or (ROWS,)
        axis = None if step.spec.by_row or isinstance(shape[0], int) else step.axes.of_input(name)
        sizes = to_place(column.shape(rows) if column else _sizes(tensor, rows), step.axes.of_input(name))
        yield name, sizes[1:] if step.spec.by_row and shape[0] == ROWS else sizes, axis
    for one in step.constants:
        whole = tuple(size if isinstance(size, int) else None for size in one.target.shape or ())
        sizes = whole if one.axis is None else to_place(_sizes(one.target, rows), one.axis)
        yield one.value.name, sizes, one.axis


def _sizes(tensor: TensorType, rows: int) -> Sizes:
    """Return the sizes of a value for some rows; state that a model takes whole has no rows."""
    if tensor.shape and isinstance(tensor.shape[0], int):
        return tuple(size if isinstance(size, int) else 1 for size in tensor.shape)
    return (rows, *(size if isinstance(size, int) else None for size in (tensor.shape or ())[1:]))
