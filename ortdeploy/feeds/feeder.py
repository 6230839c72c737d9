"""Makes the tensors that a session is fed: rows go through their prepare steps and are checked, to the element.

So no native code sees a buffer that does not fit. The plan checks a job's first rows with the same functions.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from ortdeploy.feeds.narrowed import log_narrowed
from ortdeploy.feeds.prepared_input import Made, PreparedInput, leaves_sizes_open
from ortdeploy.plan.steps import RunJob
from ortdeploy.results.rows import Block, StageError
from ortdeploy.tensors.columns import Array, OpRunners, finite_rows, is_beside
from ortdeploy.tensors.elements import widened


class Feeder:
    """Makes the tensors of one job's runs."""

    def __init__(self, job: RunJob, ops: OpRunners | None = None, tell: Callable[[str], None] = log_narrowed) -> None:
        """Build every prepare step once; `ops` run those that are operators. `tell` gets what a provider may change."""
        self._pad_to = job.batching.pad_to
        self._size = job.batching.run_size
        self._one_by_one = job.batching.size is None
        self._choice = job.adapters
        self._planned = job.inputs
        free = job.pipeline is not None and job.pipeline.preset is None
        self._inputs = [
            PreparedInput(
                planned, ops or {}, tell, whole_rows=self._one_by_one, ragged=free and leaves_sizes_open(planned)
            )
            for planned in job.inputs
        ]
        self._accepted: list[list[tuple[int, ...]]] = []

    @property
    def fixed(self) -> bool:
        """Whether the graph leaves no choice of how many rows a run has."""
        return self._pad_to is not None and any(
            planned.shape and isinstance(planned.shape[0], int) for planned in self._planned
        )

    @property
    def made(self) -> Sequence[Made]:
        """What steps took at most for the rows that were prepared last, for each input."""
        return [one.made for one in self._inputs]

    @property
    def scratch(self) -> int:
        """The bytes that steps took beside that for one of these rows at a time."""
        return max((one.scratch for one in self._inputs), default=0)

    def reduce_batch_size(self, size: int) -> None:
        """Note that each later run has fewer rows than planned."""
        self._size = size
        self._pad_to = size if self._pad_to is not None else None

    def prepare_block(self, block: Block) -> dict[str, Array] | None:
        """Return tensors [rows, …] of all rows of a block, to be cut into batches; None if some cannot be fed."""
        if self._one_by_one or not len(block.rows):
            return None
        try:
            feeds = self._prepare(block, range(len(block.rows)))
            for size in {len(rows) for rows in cut(block, self._size)}:
                self._check_shapes([(self._pad_to or size, *array.shape[1:]) for array in feeds.values()])
        except StageError:
            return None
        return feeds

    def prepare_batch(self, block: Block, rows: Sequence[int]) -> dict[str, Array]:
        """Return the tensors [rows, …] of one run, for some rows of a block. Raises StageError."""
        if self._one_by_one and len(rows) > 1:
            raise StageError("run", "one-row-a-run", "rows of this model are run one by one")
        feeds = self._prepare(block, rows)
        if self._pad_to is not None:
            feeds = padded(feeds, self._pad_to)
        self._check_shapes([array.shape for array in feeds.values()])
        return feeds

    def cut_batch(self, feeds: Mapping[str, Array], rows: Sequence[int]) -> dict[str, Array]:
        """Return the tensors [rows, …] of one run, cut from those of a whole block."""
        if isinstance(rows, range):
            taken = {name: array[rows.start : rows.stop] for name, array in feeds.items()}
        else:
            taken = {name: array[rows] for name, array in feeds.items()}
        return taken if self._pad_to is None else padded(taken, self._pad_to)

    def _prepare(self, block: Block, rows: Sequence[int]) -> dict[str, Array]:
        """Return some rows' tensors, of the planned types and ranges. Raises StageError."""
        return {
            planned.name: planned.check(planned.prepare(block.columns, rows, len(block.rows)))
            for planned in self._inputs
        }

    def _check_shapes(self, shapes: list[tuple[int, ...]]) -> None:
        """Check the shapes of one run against the plan. Raises StageError."""
        if shapes in self._accepted:  # most batches have the shapes of the one before
            return
        sizes: dict[str, int] = {}
        for planned, shape in zip(self._inputs, shapes, strict=True):
            if not planned.ragged or len(shape) > 1:
                planned.check_shape(shape, sizes)
        self._accepted = [*self._accepted[-1:], shapes]

    def adapters(self, block: Block, row: int) -> tuple[str, ...]:
        """Return the adapters of a row of a block. Raises StageError if there is none for it."""
        column = self._choice.column
        if column is None:
            return self._choice.always
        text = str(block.key(column)[row])
        adapters = self._choice.of(text)
        if adapters is None:
            raise StageError("contract", "no-adapter", f'no adapter is meant for {column} "{text}"')
        return adapters

    def finite_rows(self, feeds: Mapping[str, Array], rows: int) -> Array:
        """Return bool [rows], whether all floating-point inputs of a row are finite."""
        finite = np.ones(rows, dtype=bool)
        for array in feeds.values():
            if is_beside(array):
                finite &= finite_rows(list(array))[:rows]
                continue
            numbers = widened(array)
            if np.issubdtype(numbers.dtype, np.floating):
                by_row = np.asarray(np.isfinite(numbers)).reshape(1 if self._one_by_one else len(numbers), -1)
                finite &= np.asarray(by_row.all(axis=1))[:rows]
        return finite


def cut(block: Block, size: int) -> Sequence[range]:
    """Return the batches of a block as places of rows: `size` rows of the input each, without those that failed."""
    if len(block.rows) == block.count:
        return _cut_all(block.count, size)
    from bisect import bisect_left  # noqa: PLC0415  only where rows could not be read

    edges = range(block.start, block.start + block.count + size, size)
    places = [bisect_left(block.rows, edge) for edge in edges]
    return [range(begin, end) for begin, end in pairwise(places) if begin < end]


@lru_cache(maxsize=4)  # a job's blocks have as many rows as the one before
def _cut_all(count: int, size: int) -> Sequence[range]:
    return tuple(range(begin, min(begin + size, count)) for begin in range(0, count, size))


def padded(feeds: Mapping[str, Array], rows: int) -> dict[str, Array]:
    """Pad tensors [n, …] to [rows, …] with copies of the last row."""
    return {
        name: np.concatenate([array, np.repeat(array[-1:], rows - len(array), axis=0)]) if len(array) < rows else array
        for name, array in feeds.items()
    }
