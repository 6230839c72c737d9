"""What happens to rows between source and sink: prepare, check, run, postprocess. One object a job, no I/O.

A failing batch is split until the bad row is alone; the rest is kept.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortdeploy.diagnostics import OrtdeployError, ProviderFailedError
from ortdeploy.element_types import numpy_dtype, widened
from ortdeploy.plan import PlannedInput, PlannedStep, RunJob
from ortdeploy.probe_run import ProbeRun
from ortdeploy.runtime.protocol import Array, Session
from ortdeploy.sources.protocol import Batch, Column, FailedRow
from ortdeploy.tensors import TensorType, format_shape
from ortdeploy.timing import Histogram
from ortdeploy.transforms.catalogue import POSTPROCESS, PREPARE
from ortdeploy.transforms.protocol import Apply


class StageError(Exception):
    """Some row of a batch failed in a stage: prepare, contract, run or postprocess."""

    def __init__(self, stage: str, code: str, message: str) -> None:
        """Take what goes into _failed.jsonl."""
        super().__init__(message)
        self.stage = stage
        self.code = code


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The results of a batch, keys and outputs, and its rows that failed or were skipped."""

    columns: dict[str, Column]
    committed: int
    failed: list[FailedRow]
    skipped: int


class RowRunner:
    """Runs batches of one job on a session."""

    def __init__(self, job: RunJob, session: Session, probe: ProbeRun | None = None) -> None:
        """Build every step once."""
        self._job = job
        self._session = session
        self._probe = probe
        self._inputs = [_PreparedInput(planned, whole_rows=job.batch_size == 0) for planned in job.inputs]
        self._postprocess = [(step, _build_postprocess(step)) for step in job.postprocess]
        self.run_times = Histogram()

    def run(self, batch: Batch) -> Outcome:
        """Run the rows of a batch; rows that fail are named, the others give results."""
        failed = list(batch.failed)
        if self._job.last == "drop" and 0 < self._job.batch_size > batch.count:
            return Outcome(columns={}, committed=0, failed=failed, skipped=batch.count - len(failed))
        pieces = self._split(batch, range(len(batch.rows)), failed) if len(batch.rows) else []
        skipped = batch.count - len(failed) - sum(len(rows) for rows, _ in pieces)
        columns = self._collect(batch, pieces)
        failed.sort(key=lambda row: row.row)
        return Outcome(columns=columns, committed=sum(len(r) for r, _ in pieces), failed=failed, skipped=skipped)

    def _split(
        self, batch: Batch, rows: Sequence[int], failed: list[FailedRow]
    ) -> list[tuple[Sequence[int], dict[str, Column]]]:
        """Try rows together; where that fails, each half on its own."""
        try:
            results = self._evaluate(batch, rows)
        except StageError as error:
            if len(rows) == 1:
                failed.append(self._failure(batch, rows[0], error))
                return []
            middle = len(rows) // 2
            return self._split(batch, rows[:middle], failed) + self._split(batch, rows[middle:], failed)
        return self._keep_finite(batch, rows, results, failed)

    def _evaluate(self, batch: Batch, rows: Sequence[int]) -> dict[str, Column]:
        """Take rows through all stages. Raises StageError."""
        if self._job.batch_size == 0 and len(rows) > 1:
            raise StageError("run", "one-row-a-run", "rows of this model are run one by one")
        feeds: dict[str, Array] = {}
        sizes: dict[str, int] = {}
        for planned in self._inputs:
            array = planned.prepare(batch.columns, rows, len(batch.rows))
            feeds[planned.name] = planned.check(array, len(rows), self._job.pad_to, sizes)
        return self._apply_postprocess(self._run_session(feeds, len(rows)))

    def _run_session(self, feeds: dict[str, Array], rows: int) -> dict[str, Column]:
        begin = time.perf_counter()
        try:
            values = self._run_both(self._probe, feeds) if self._probe else self._run(self._session, feeds)
        except ProviderFailedError:
            raise
        except OrtdeployError as error:
            raise StageError("run", "run-refused", str(error)) from error
        self.run_times.add(time.perf_counter() - begin)
        if self._job.batch_size == 0:
            return {name: _as_row(value) for name, value in zip(self._job.fetch, values, strict=True)}
        expected = self._job.pad_to or rows
        for name, value in zip(self._job.fetch, values, strict=True):
            if np.ndim(value) == 0 or len(value) != expected:
                shape = format_shape(np.shape(value))
                raise StageError("contract", "output-rows", f"output {name} is {shape} for {expected} rows")
        return {name: value[:rows] for name, value in zip(self._job.fetch, values, strict=True)}

    def _run(self, session: Session, feeds: dict[str, Array]) -> Sequence[Array]:
        values = session.run(self._job.fetch, feeds, self._job.adapter)
        return [widened(value) if isinstance(value, np.ndarray) else value for value in values]

    def _run_both(self, probe: ProbeRun, feeds: dict[str, Array]) -> Sequence[Array]:
        """Run a batch on the CPU session too, at the same time, and compare. Raises ProviderFailedError.

        The proof is the first batch that both have run: one that is refused for a bad row proves nothing.
        """
        if probe.session is None:
            self._probe = None
            return self._run(self._session, feeds)
        with ThreadPoolExecutor(1) as beside:
            reference = beside.submit(self._run, probe.session, feeds)
            values = self._run(self._session, feeds)
        probe.compare(self._job.fetch, values, reference.result())
        probe.take()
        return values

    def _apply_postprocess(self, results: dict[str, Column]) -> dict[str, Column]:
        for step, apply in self._postprocess:
            try:
                made = apply(np.asarray(results[step.options[step.name]]))
            except (ValueError, IndexError, ArithmeticError, TypeError) as error:
                raise StageError("postprocess", step.name, str(error)) from error
            results.update(zip(step.results, made, strict=True))
        return results

    def _keep_finite(
        self, batch: Batch, rows: Sequence[int], results: dict[str, Column], failed: list[FailedRow]
    ) -> list[tuple[Sequence[int], dict[str, Column]]]:
        """Apply on_nan to rows whose outputs hold NaN or an infinity."""
        if not self._job.check_finite:
            return [(rows, results)]
        finite = np.ones(len(rows), dtype=bool)
        for name in self._job.check_finite:
            finite &= _finite_rows(results[name])
        if finite.all():
            return [(rows, results)]
        if self._job.on_nan == "fail":
            error = StageError("run", "not-finite", "an output holds NaN or an infinity")
            failed += [self._failure(batch, row, error) for row, fine in zip(rows, finite, strict=True) if not fine]
        kept = [row for row, fine in zip(rows, finite, strict=True) if fine]
        picked: dict[str, Column] = {
            name: [column[row] for row in np.flatnonzero(finite)] if isinstance(column, list) else column[finite]
            for name, column in results.items()
        }
        return [(kept, picked)] if kept else []

    def _failure(self, batch: Batch, row: int, error: StageError) -> FailedRow:
        key = {name: _json_value(batch.columns[name][row]) for name in self._job.key}
        path = batch.columns["path"][row] if "path" in batch.columns else f"row {batch.rows[row]}"
        return FailedRow(
            row=batch.rows[row], source=str(path), stage=error.stage, code=error.code, message=str(error), key=key
        )

    def _collect(self, batch: Batch, pieces: list[tuple[Sequence[int], dict[str, Column]]]) -> dict[str, Column]:
        """Put keys and results of all pieces together again, in the order of the rows."""
        if not pieces:
            return {}
        if len(pieces) == 1 and len(pieces[0][0]) == len(batch.rows):
            keys = {name: batch.columns[name] for name in self._job.key}
            return {**keys, **{name: pieces[0][1][name] for name in self._job.columns}}
        chosen = [row for rows, _ in pieces for row in rows]
        columns: dict[str, Column] = {name: [batch.columns[name][row] for row in chosen] for name in self._job.key}
        for name in self._job.columns:
            columns[name] = _concatenate([results[name] for _, results in pieces])
        return columns


def _as_row(value: Any) -> Column:
    """Return the one row that a run has given; sequences and maps are values of the row."""
    return value[np.newaxis] if isinstance(value, np.ndarray) else [value]


def _finite_rows(column: Column) -> Array:
    """Tell of each row whether all its numbers are finite."""
    if isinstance(column, list):
        return np.array([_is_finite(value) for value in column], dtype=bool)
    return np.asarray(np.isfinite(column).reshape(len(column), -1).all(axis=1))


def _is_finite(value: Any) -> bool:
    """Tell whether all numbers of a sequence or a map are finite."""
    if isinstance(value, dict | list):
        return all(_is_finite(item) for item in (value.values() if isinstance(value, dict) else value))
    numbers = np.asarray(value)
    return not np.issubdtype(numbers.dtype, np.floating) or bool(np.isfinite(numbers).all())


def _json_value(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _concatenate(parts: list[Column]) -> Column:
    if any(isinstance(part, list) for part in parts):
        return [value for part in parts for value in part]
    arrays = [np.asarray(part) for part in parts]
    if len({array.shape[1:] for array in arrays}) == 1:
        return np.concatenate(arrays)
    return [value for array in arrays for value in array]


def _build_postprocess(step: PlannedStep) -> Apply:
    return POSTPROCESS[step.name].build(step.options, TensorType(step.dtype, step.shape, step.layout))


def _build_prepare(step: PlannedStep) -> Callable[[Array], Array]:
    apply = PREPARE[step.name].build(step.options, TensorType(step.dtype, step.shape, step.layout))
    return lambda array: apply(array)[0]


class _PreparedInput:
    """One model input: its steps, and the check that keeps what does not fit from native code."""

    def __init__(self, planned: PlannedInput, *, whole_rows: bool) -> None:
        self.name = planned.name
        self._planned = planned
        self._steps = [(step.name, _build_prepare(step)) for step in planned.steps]
        self._dtype = numpy_dtype(planned.dtype)
        self._whole_rows = whole_rows

    def prepare(self, columns: dict[str, Column], rows: Sequence[int], available: int) -> Array:
        """Return the named rows, stacked and taken through the steps. Raises StageError."""
        parts = [_pick(columns[name], rows, available) for name in self._planned.columns]
        column = self._stack(parts) if self._planned.stacked else parts[0]
        if isinstance(column, list):
            prepared = [self._apply(np.asarray(value)[np.newaxis])[0] for value in column]
            if len({(value.shape, value.dtype) for value in prepared}) > 1:
                raise StageError("contract", "ragged-rows", f"rows of input {self.name} differ in shape")
            return np.stack(prepared)
        return self._apply(column)

    def _stack(self, parts: list[Column]) -> Array:
        """Make one vector a row of several columns."""
        try:
            return np.stack([np.asarray(part) for part in parts], axis=1)
        except ValueError as error:
            raise StageError("contract", "ragged-rows", f"columns of input {self.name} differ in shape") from error

    def _apply(self, array: Array) -> Array:
        for name, step in self._steps:
            try:
                array = step(array)
            except (ValueError, IndexError, ArithmeticError, TypeError) as error:
                raise StageError("prepare", name, f"{self.name}: {error}") from error
        return array

    def check(self, array: Array, rows: int, pad_to: int | None, sizes: dict[str, int]) -> Array:
        """Return the tensor to feed, contiguous and of exactly the planned type and shape. Raises StageError."""
        if self._whole_rows:
            array = np.asarray(array[0])
        elif pad_to is not None and rows < pad_to:
            array = np.concatenate([array, np.repeat(array[-1:], pad_to - rows, axis=0)])
        if array.dtype != self._dtype:
            message = f"input {self.name} takes {self._planned.dtype} and gets {array.dtype}"
            raise StageError("contract", "element-type", message)
        self._check_shape(array, sizes)
        self._check_limits(array)
        return np.ascontiguousarray(array) if array.ndim else array

    def _check_shape(self, array: Array, sizes: dict[str, int]) -> None:
        planned = self._planned.shape
        if planned is None:
            return
        fits = len(planned) == array.ndim and all(
            size == want if isinstance(want, int) else want is None or sizes.setdefault(want, size) == size
            for size, want in zip(array.shape, planned, strict=True)
        )
        if not fits:
            have, want = format_shape(array.shape), format_shape(planned)
            solved = ", ".join(f"{name} = {size}" for name, size in sizes.items())
            message = f"input {self.name} takes {want} and gets {have}" + (f" ({solved})" if solved else "")
            raise StageError("contract", "shape", message)

    def _check_limits(self, array: Array) -> None:
        limits = self._planned.limits
        if limits is None or not array.size:
            return
        low, high = float(array.min()), float(array.max())
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
    return [column[row] for row in rows]
