"""Predicts the memory for values between the steps of a pipeline: the most that are held at once."""

from collections.abc import Callable, Collection, Mapping, Sequence

from ortdeploy.deployment.pipeline_types import TypedStep
from ortdeploy.deployment.resolved import ResolvedJob
from ortdeploy.manifest.pipelines import StepOfPipeline, walk
from ortdeploy.tensors.types import TensorType

RowBytes = Callable[[TensorType], int | None]
"""Returns the bytes of one row of a value [rows, …]; None if a size is open."""

_VIEWS = "windows"
"""The operation whose results are views of one copy of its input, however much they overlap."""


def items_at_once(step: TypedStep, rows: int) -> int:
    """Return how many items of an `each` run together, for a number of rows."""
    if not step.spec.state:
        count = _items_of_a_row(step)
        return step.spec.batch if count is None else max(1, min(step.spec.batch, rows * count))
    return min(step.spec.batch, rows) if step.state_by_row else 1


def _items_of_a_row(step: TypedStep) -> int | None:
    shape = step.types[step.spec.name].shape if step.spec.name in step.types else None
    return shape[1] if shape is not None and len(shape) > 1 and isinstance(shape[1], int) else None


def value_bytes(job: ResolvedJob, rows: int, row_bytes: RowBytes) -> int:
    """Return the bytes of the values that a run of `rows` holds at once; values with open sizes are not counted.

    The job's inputs and outputs are not counted here.
    """
    if job.pipeline is None or job.pipeline.types is None:
        return 0
    results = job.pipeline.spec.outputs.values()
    return _most(job.pipeline.types.steps, rows, row_bytes, frozenset(results), frozenset(results))


def _most(
    steps: Sequence[TypedStep], rows: int, row_bytes: RowBytes, kept: Collection[str], uncounted: Collection[str]
) -> int:
    """Return the most bytes that steps hold; `kept` are read after the last of them, `uncounted` counted elsewhere."""
    last = {name: place for place, step in enumerate(steps) for name in _read(step.spec)}
    held: dict[str, int] = {}
    most = 0
    for place, step in enumerate(steps):
        held |= {name: size for name, size in _made(step, rows, row_bytes).items() if name not in uncounted}
        inside = 0
        if step.inner:
            inside = _most(
                step.inner, items_at_once(step, rows), row_bytes, {name for name, _ in step.spec.outputs}, ()
            )
        most = max(most, sum(held.values()) + inside)
        held = {name: size for name, size in held.items() if name in kept or last.get(name, -1) > place}
    return most


def _read(spec: StepOfPipeline) -> set[str]:
    """Return the values that a step reads, including those that its inner steps read."""
    steps = list(walk([spec]))
    return {name for one in steps for name in one.wires.values()} | {one.name for one in steps if one.kind == "each"}


def _made(step: TypedStep, rows: int, row_bytes: RowBytes) -> Mapping[str, int]:
    sizes = {name: rows * (row_bytes(tensor) or 0) for name, tensor in step.made.items()}
    if step.spec.kind == "do" and step.spec.name == _VIEWS:
        taken = sum(rows * (row_bytes(tensor) or 0) for tensor in step.types.values())
        sizes = {name: min(size, taken) for name, size in sizes.items()}
    return sizes
