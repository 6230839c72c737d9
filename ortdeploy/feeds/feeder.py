"""Makes the tensors that a session is fed: rows go through their prepare steps and are checked, to the element.

So no native code sees a buffer that does not fit. The plan checks a job's first rows with the same functions.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from ortdeploy.facts.data import Dialect
from ortdeploy.feeds.narrowed import NarrowedCheck, log_narrowed
from ortdeploy.files.memory_budget import room
from ortdeploy.files.urls import is_url
from ortdeploy.plan.pipeline import PlannedWireStep
from ortdeploy.plan.steps import PlannedInput, PlannedStep, RunJob
from ortdeploy.process.cores import usable_cores
from ortdeploy.results.rows import HIDDEN, Block, StageError
from ortdeploy.sources.catalogue import ARRAYS, at_hand, indexes_of, open_input
from ortdeploy.sources.files import InputPaths
from ortdeploy.sources.fitted import Fitted
from ortdeploy.sources.protocol import DATA, DECODING, Source, Wanted
from ortdeploy.sources.renamed import Renamed, in_files
from ortdeploy.sources.retrying import patiently
from ortdeploy.tensors.arrow_types import innermost
from ortdeploy.tensors.columns import Array, Column, OpRun, OpRunners, beside, is_beside, pick
from ortdeploy.tensors.conversion import rounded_places
from ortdeploy.tensors.elements import numpy_dtype, widened
from ortdeploy.tensors.types import TensorType, format_shape
from ortdeploy.transforms.sample_rates import RATE, needs_rate


def wanted_columns(job: RunJob) -> Wanted:
    """Return the columns that a job's source must read."""
    return Wanted(
        dtypes={name: planned.read_dtype for planned in job.inputs for name in planned.columns} | _rates(job),
        keys=tuple(dict.fromkeys((*job.input.key, *_choosing(job), *HIDDEN))),
        types=job.input.types,
        missing=job.input.missing,
        first_row=job.input.files_from,
        row_type=job.input.row_type,
        memory_limit=job.limits.memory,
        settings=job.input.settings,
        dialect=_dialect(job),
        ends=_ends(job),
    )


def _dialect(job: RunJob) -> Dialect:
    """Return how a job's tables are written: what another job has committed is whole, however long a text in it is."""
    dialect = job.input.dialect
    return dialect if job.input.upstream is None else replace(dialect, lines_per_record=sys.maxsize)


def wanted_here(job: RunJob) -> Wanted:
    """Return what a job's source must read, with how much of this machine may read it."""
    threads = _reading_threads(job)
    return replace(wanted_columns(job), threads=threads, processes=_processes(job, threads))


def _rates(job: RunJob) -> dict[str, str | None]:
    """Return the column of sample rates, if an input's steps need those of each row."""
    return {RATE: None} if any(_need_rates(planned) for planned in job.inputs) else {}


def _need_rates(planned: PlannedInput) -> bool:
    return any(needs_rate(step.name, step.options) for step in planned.steps)


def _ends(job: RunJob) -> tuple[int, int] | None:
    """Return how many of a file's first and last bytes to read, if the first step of every input takes only those."""
    if job.input.format != "bytes" or DATA in job.input.key:
        return None
    first = [planned.steps[0].options if planned.steps else {} for planned in job.inputs if DATA in planned.columns]
    if not all("head" in options or "tail" in options for options in first):
        return None
    heads, tails = ([options.get(end, 0) for options in first] for end in ("head", "tail"))
    return max(heads, default=0), max(tails, default=0)


def _choosing(job: RunJob) -> tuple[str, ...]:
    """Return the columns that choose a row's adapter, or that reset the state."""
    reset = job.pipeline.reset if job.pipeline else ()
    return (*((job.adapters.column,) if job.adapters.column else ()), *reset)


@contextmanager
def open_rows(
    job: RunJob,
    folder: str,
    only: Sequence[int] | None = None,
    state_dir: Path | None = None,
    *,
    told: bool = False,
) -> Iterator[Source]:
    """Open a job's files, below the manifest's folder or on a store, for all of their rows or only some.

    With a state folder, readers of text go to the first row by the indexes that lie there; `told`: also by those that
    a saved plan has brought.
    """
    files = InputPaths(folder, job.input.files)
    wanted = wanted_here(job)
    if state_dir is not None:
        indexes = indexes_of(job.input.format, state_dir, folder, wanted.settings, told=told, dialect=wanted.dialect)
        wanted = replace(wanted, indexes=indexes)
    with at_hand(job.input.format, files, job.input.patterns, job.input.files, ahead=wanted.threads) as there:

        def open_some(only: Sequence[int] | None) -> AbstractContextManager[Source]:
            return open_wanted(job, there, folder, replace(wanted, only=only))

        with patiently(open_some, only, "reading the input") as source:
            yield source


def _reading_threads(job: RunJob) -> int:
    """Return how many threads may decode a job's rows at once, and how many may prepare them."""
    return min(usable_cores(), job.limits.threads or sys.maxsize)


def _processes(job: RunJob, threads: int) -> int:
    """Return how many other processes may decode a job's files: none under a limit of this one's memory.

    Nor where files are fetched from a store, which takes longer than to decode them.
    """
    if job.limits.memory is not None or any(map(is_url, job.input.patterns)):
        return 0
    return threads - 1


def prepared_at_once(job: RunJob, block: int) -> int:
    """Return how many blocks of a job are prepared at once, if one takes `block` bytes.

    Steps that are operators are not: one session runs them. Without steps there is next to nothing to do.
    """
    steps = [step for planned in job.inputs for step in planned.steps]
    if not steps or any(step.op is not None for step in steps):
        return 1
    from ortdeploy.sources.prefetch import rows_at_once  # noqa: PLC0415  only for what takes long

    return rows_at_once(block, 0.0, _reading_threads(job), room(job.limits.memory))


def decoding_bytes(job: RunJob, row: int) -> int:
    """Return what decoding a job's rows takes for a while, in bytes, if a row is as large as this."""
    decoding = DECODING.get(job.input.format)
    if decoding is None:
        return 0
    from ortdeploy.sources.prefetch import rows_at_once  # noqa: PLC0415  not for tables

    at_once = rows_at_once(row, decoding, _reading_threads(job), room(job.limits.memory))
    ahead = at_once if at_once > 1 else 0
    return int(at_once * decoding * row) + ahead * row


@contextmanager
def open_wanted(job: RunJob, files: Sequence[str], folder: str, wanted: Wanted) -> Iterator[Source]:
    """Open files that are here as those of a job, whose columns have the names that it knows them by."""
    upstream = job.input.upstream
    if upstream is None:
        with open_input(job.input.format, files, folder, wanted) as source:
            yield _fitted(job, source, wanted)
    else:
        with open_input(job.input.format, files, folder, in_files(wanted, upstream.names)) as source:
            yield _fitted(job, Renamed(source, wanted, upstream.names), wanted)


def _fitted(job: RunJob, source: Source, wanted: Wanted) -> Source:
    """Return a source whose columns have the types of all files and parts, if those may differ."""
    fed = {name: kind for name, kind in _element_types(job).items() if name in wanted.dtypes}
    if not fed and not job.output.settled:
        return source
    return Fitted(source, wanted, fed, job.output.settled, parse=job.input.format == "csv")


def _element_types(job: RunJob) -> dict[str, str]:
    """Return the element types that fed columns of arrays have in all files; tables are read in theirs."""
    if job.input.format not in ARRAYS:
        return {}
    return {name: innermost(kind) for name, kind in job.input.types.items()}


class Made(NamedTuple):
    """Bytes of what a step gives for some rows together, and of what it was given, unless that was read so."""

    size: int = 0
    rows: int = 1


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
            _PreparedInput(
                planned, ops or {}, tell, whole_rows=self._one_by_one, ragged=free and _leaves_sizes_open(planned)
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
                finite &= np.array([_is_finite(row) for row in array], dtype=bool)[:rows]
                continue
            numbers = widened(array)
            if np.issubdtype(numbers.dtype, np.floating):
                by_row = np.asarray(np.isfinite(numbers)).reshape(1 if self._one_by_one else len(numbers), -1)
                finite &= np.asarray(by_row.all(axis=1))[:rows]
        return finite


def _is_finite(row: Array) -> bool:
    return not np.issubdtype(row.dtype, np.floating) or bool(np.isfinite(row).all())


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


_Apply = Callable[[Array, int | None], Array]
"""What a prepare step does: takes rows [rows, …] and their sample rate in Hz, or None; returns [rows, …]."""


class _Step(NamedTuple):
    """A prepare step. `scratch` says of a row […] how many bytes the step takes for a while, if these may be many."""

    name: str
    apply: _Apply
    scratch: Callable[[Array], int] | None


def _scratch_of(step: PlannedStep) -> Callable[[Array], int] | None:
    if step.op is not None:
        return None
    from ortdeploy.transforms.catalogue import PREPARE  # noqa: PLC0415  only for steps

    return PREPARE[step.name].scratch(step.options)


def _build_prepare(step: PlannedStep, ops: OpRunners) -> _Apply:
    """Return a step on rows; it gets their sample rate too if it needs that."""
    if step.op is not None:
        line, run = step.op, ops[step.op.name]
        return lambda array, _rate: _run_op(line, run, array)
    from ortdeploy.transforms.catalogue import PREPARE  # noqa: PLC0415  only for steps

    tensor = TensorType(step.dtype, step.shape, step.layout)
    if needs_rate(step.name, step.options):
        at = cache(lambda rate: PREPARE[step.name].build({**step.options, "from": rate}, tensor))
        return lambda array, rate: at(rate)(array)[0]
    apply = PREPARE[step.name].build(step.options, tensor)
    return lambda array, _rate: apply(array)[0]


def _leaves_sizes_open(planned: PlannedInput) -> bool:
    """Return whether rows of an input may differ in shape: no model takes it that would name its sizes."""
    if planned.shape is None:
        return True
    sizes = planned.shape[1:]
    return None in sizes and not any(isinstance(size, str) for size in sizes)


def _run_op(line: PlannedWireStep, run: OpRun, array: Array) -> Array:
    """Return what op steps make of the value so far, [rows, …] both. Raises ValueError if rows differ in shape."""
    ((_, taken),), ((_, given),) = line.wires, line.outputs
    found = run({taken: array}, len(array))[given]
    if not isinstance(found, np.ndarray):
        raise ValueError("its results differ in shape from row to row")  # noqa: TRY004  as of any step
    return found


def _is_even(step: PlannedStep) -> bool:
    """Return whether rows of one shape give rows of one shape."""
    if step.op is not None:
        return not step.op.by_row
    from ortdeploy.transforms.catalogue import PREPARE  # noqa: PLC0415  only for steps

    return PREPARE[step.name].contract.even


class _PreparedInput:
    """One model input: its steps, and the check that protects native code from tensors that do not fit."""

    def __init__(
        self, planned: PlannedInput, ops: OpRunners, tell: Callable[[str], None], *, whole_rows: bool, ragged: bool
    ) -> None:
        self.name = planned.name
        self.ragged = ragged
        self._planned = planned
        built = [_Step(step.name, _build_prepare(step, ops), _scratch_of(step)) for step in planned.steps]
        casts_first = planned.stacked and bool(built) and built[0].name == "cast"
        self._of_columns, self._steps = (built[:1], built[1:]) if casts_first else ([], built)
        self._is_even = all(map(_is_even, planned.steps))
        self._dtype = numpy_dtype(planned.dtype)
        self._whole_rows = whole_rows
        self._needs_rates = _need_rates(planned)
        narrowed = planned.narrowed_by
        self._narrowed = NarrowedCheck(f"input {planned.name}", narrowed, tell) if narrowed else None
        self.made, self.scratch = Made(), 0

    def prepare(self, columns: dict[str, Column], rows: Sequence[int], available: int) -> Array:
        """Return some rows, stacked as [rows, …] and taken through the steps. Raises StageError."""
        self.made, self.scratch = Made(), 0
        parts = [_pick(columns[name], rows, available) for name in self._planned.columns]
        column = self._stack(parts) if self._planned.stacked else parts[0]
        if isinstance(column, list) or self._needs_rates or not self._is_even:
            rates = _pick(columns[RATE], rows, available) if self._needs_rates else [None] * len(column)
            pairs = zip(column, rates, strict=True)
            prepared = [self._apply(np.asarray(value)[np.newaxis], rate)[0] for value, rate in pairs]
            if len({(value.shape, value.dtype) for value in prepared}) > 1:
                return self._beside(prepared)
            return np.stack(prepared)
        return self._apply(column)

    def _beside(self, rows: list[Array]) -> Array:
        """Return rows that differ in shape as objects [rows], which steps of a pipeline take. Raises StageError."""
        if not self.ragged:
            raise StageError("contract", "ragged-rows", f"rows of input {self.name} differ in shape")
        checked = [self._checked(row[np.newaxis]) for row in rows]
        for row in checked:
            self.check_shape(row.shape, {})
        return beside([row[0] for row in checked])

    def _stack(self, parts: list[Column]) -> Array:
        """Stack several columns into one vector per row, [rows, columns]. Raises StageError."""
        try:
            arrays = [np.asarray(self._cast(part)) for part in parts]
            stacked = np.stack(arrays, axis=1)
        except ValueError as error:
            told = ", ".join(
                f"{name} {list(np.shape(part[0]))}" for name, part in zip(self._planned.columns, parts, strict=True)
            )
            message = f"columns of input {self.name} differ in shape: {told}"
            raise StageError("contract", "ragged-rows", message) from error
        if stacked.dtype.kind == "f":
            self._refuse_rounded(arrays, stacked.dtype)
        return stacked

    def _refuse_rounded(self, arrays: Sequence[Array], dtype: "np.dtype[Any]") -> None:
        """Raise StageError if whole numbers change in the floating type of all columns; large ones become float64."""
        for name, array in zip(self._planned.columns, arrays, strict=True):
            whole = array.reshape(-1)
            place = next(iter(rounded_places(whole, dtype.name)), None) if array.dtype.kind in "iu" else None
            if place is not None:
                message = (
                    f"{name} is {whole[place]}, which {dtype} would round; input {self.name} stacks its columns as that"
                )
                raise StageError("contract", "rounded", message)

    def _cast(self, part: Column) -> Column:
        """Return one of several columns [rows, …] in the element type of their common cast."""
        return self._take(self._of_columns, np.asarray(part)) if self._of_columns else part

    def _apply(self, array: Array, rate: Any = None) -> Array:
        return self._take(self._steps, array, rate)

    def _take(self, steps: Sequence["_Step"], array: Array, rate: Any = None) -> Array:
        given = 0  # what was read counts as that
        for step in steps:
            taken = array
            try:
                array = step.apply(taken, None if rate is None else int(rate))
            except (ValueError, IndexError, ArithmeticError, TypeError) as error:
                raise StageError("prepare", step.name, f"{self.name}: {error}") from error
            if step.scratch is not None and len(taken):  # only of rows that keep to the step's contract
                self.scratch = max(self.scratch, step.scratch(taken[0]))
            del taken  # which may be large
            self.made = max(self.made, Made(given + array.nbytes, len(array)))
            given = array.nbytes
        return array

    def check(self, array: Array) -> Array:
        """Return the tensor to feed, contiguous, of exactly the planned type and range. Raises StageError.

        It is [rows, …], or the one row […] if the graph has no dimension for rows.
        """
        if self._whole_rows:
            array = np.asarray(array[0])
        return array if self.ragged and is_beside(array) else self._checked(array)

    def _checked(self, array: Array) -> Array:
        if array.dtype != self._dtype:
            wanted = self._planned.dtype
            message = f"input {self.name} takes {wanted} and gets {array.dtype}; prepare it with cast: {wanted}"
            raise StageError("contract", "element-type", message)
        self._check_limits(array)
        problem = self._narrowed.problem(array) if self._narrowed else None
        if problem:
            raise StageError("contract", "range", problem)
        return np.ascontiguousarray(array) if array.ndim else array

    def check_shape(self, shape: tuple[int, ...], sizes: dict[str, int]) -> None:
        """Check a tensor's shape against the plan; a symbol is one number in all inputs of a run. Raises StageError."""
        planned = self._planned.shape
        if planned is None:
            return
        fits = len(planned) == len(shape) and all(
            size == want if isinstance(want, int) else want is None or sizes.setdefault(want, size) == size
            for size, want in zip(shape, planned, strict=True)
        )
        if not fits:
            have, want = format_shape(shape), format_shape(planned)
            solved = ", ".join(f"{name} = {size}" for name, size in sizes.items())
            message = f"input {self.name} takes {want} and gets {have}" + (f" ({solved})" if solved else "")
            raise StageError("contract", "shape", message)

    def _check_limits(self, array: Array) -> None:
        limits = self._planned.limits
        if limits is None or not array.size:
            return
        numbers = widened(array)
        low, high = float(numbers.min()), float(numbers.max())
        if not (low >= limits[0] and high <= limits[1]):  # also when one of them is NaN
            first, last, least, most = (f"{value:.12g}" for value in (*limits, low, high))
            message = f"input {self.name} must lie in {first} to {last} and has {least} to {most}"
            raise StageError("contract", "range", message)


def _pick(column: Column, rows: Sequence[int], available: int) -> Column:
    """Take some rows of a column; all of them without a copy."""
    if len(rows) == available:
        return column
    if isinstance(rows, range):
        return column[rows.start : rows.stop]
    return pick(column, rows)
