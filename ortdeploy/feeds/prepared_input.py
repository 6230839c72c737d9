"""Makes the tensor of one input of a model: its prepare steps, row by row or for a block at once, and the check."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ortdeploy.feeds.narrowed import NarrowedCheck
from ortdeploy.feeds.row_sources import input_needs_rate
from ortdeploy.plan.pipeline import PlannedWireStep
from ortdeploy.plan.steps import PlannedInput, PlannedStep
from ortdeploy.results.rows import StageError
from ortdeploy.tensors.columns import Array, Column, OpRun, OpRunners, beside, is_beside, pick
from ortdeploy.tensors.conversion import rounded_places
from ortdeploy.tensors.elements import numpy_dtype, widened
from ortdeploy.tensors.types import TensorType, format_shape
from ortdeploy.transforms.sample_rates import RATE, needs_rate


class Made(NamedTuple):
    """Bytes of what a step gives for some rows together, and of what it was given, unless that was read so."""

    size: int = 0
    rows: int = 1


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


def leaves_sizes_open(planned: PlannedInput) -> bool:
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


class PreparedInput:
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
        self._needs_rates = input_needs_rate(planned)
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
            prepared = [self._apply(np.asarray(value)[np.newaxis], rate)[0, ...] for value, rate in pairs]
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
            if self._planned.dtype == "string" and len(shape) + 1 == len(planned):
                message += f". A row has a list of texts: write [TEXT], or prepare: {{{self.name}: [{{expand: 0}}]}}"
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
