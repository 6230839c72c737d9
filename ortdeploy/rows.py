"""What happens to rows between source and sink: fed, run, postprocessed. One object a job and session, no I/O.

A failing batch is split until the bad row is alone; the rest is kept.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortdeploy.diagnostics import OrtdeployError, ProviderFailedError
from ortdeploy.element_types import widened
from ortdeploy.feeds import Feeder, StageError
from ortdeploy.plan import PlannedStep, RunJob
from ortdeploy.probe_run import ProbeRun
from ortdeploy.runtime.protocol import Array, Session
from ortdeploy.sources.protocol import Batch, Column, FailedRow
from ortdeploy.tensors import TensorType, format_shape
from ortdeploy.timing import Histogram
from ortdeploy.transforms.catalogue import POSTPROCESS
from ortdeploy.transforms.protocol import Apply


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
        self._feeder = Feeder(job)
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
            feeds = self._feeder.feeds(batch, rows)
            results = self._apply_postprocess(self._run_session(feeds, len(rows)))
        except StageError as error:
            if len(rows) == 1:
                failed.append(self._failure(batch, rows[0], error))
                return []
            middle = len(rows) // 2
            return self._split(batch, rows[:middle], failed) + self._split(batch, rows[middle:], failed)
        finite = self._finite(results, len(rows))
        if finite is None or finite.all():
            return [(rows, results)]
        clean = self._feeder.finite_rows(feeds, len(rows))
        if not clean.all() and (clean & ~finite).any():  # a graph that mixes rows: NaN of some may have reached others
            self._refuse_not_finite(batch, rows, clean, failed)
            return self._split(batch, [row for row, fine in zip(rows, clean, strict=True) if fine], failed)
        self._refuse_not_finite(batch, rows, finite, failed)
        return _keep(rows, results, finite)

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
                message = (
                    f"output {name} is {shape} for {expected} rows. Where that first dimension is not for rows, leave "
                    "it out with columns:, or use batch: {size: none}"
                )
                raise StageError("contract", "output-rows", message)
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

    def _finite(self, results: dict[str, Column], rows: int) -> Array | None:
        """Tell of each row whether the outputs that on_nan looks at are all finite; None where it looks at none."""
        if not self._job.check_finite:
            return None
        finite = np.ones(rows, dtype=bool)
        for name in self._job.check_finite:
            finite &= _finite_rows(results[name])
        return finite

    def _refuse_not_finite(self, batch: Batch, rows: Sequence[int], fine: Array, failed: list[FailedRow]) -> None:
        """Make failed rows of those that are not fine, where on_nan says so; else they count as skipped."""
        if self._job.on_nan == "fail":
            error = StageError("run", "not-finite", "an output holds NaN or an infinity")
            failed += [self._failure(batch, row, error) for row, good in zip(rows, fine, strict=True) if not good]

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


def _keep(
    rows: Sequence[int], results: dict[str, Column], chosen: Array
) -> list[tuple[Sequence[int], dict[str, Column]]]:
    """Return the chosen rows with their results."""
    kept = [row for row, fine in zip(rows, chosen, strict=True) if fine]
    picked: dict[str, Column] = {
        name: [column[row] for row in np.flatnonzero(chosen)] if isinstance(column, list) else column[chosen]
        for name, column in results.items()
    }
    return [(kept, picked)] if kept else []


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
